"""The policy of a maintenance plan: its thresholds, limits and selections.

One policy language for the command line, YAML files and the Dagster component. Sizes are bytes or text ("256MiB"),
durations text ("168h", "7d").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args

import pyarrow.compute as pc
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

from dv_maintenance.config import Document, Duration, Size, load_yaml, parse_yaml, validate
from dv_maintenance.errors import UsageError
from dv_maintenance.maintenance.meter.prices import Prices
from dv_maintenance.maintenance.planning.deadlines import Erasure
from dv_maintenance.maintenance.planning.limits import CheckLimits
from dv_maintenance.tables.guard import QUARANTINE_RETENTION, VacuumGuard, VacuumRequest
from dv_maintenance.tables.model import parse_partition
from dv_maintenance.tables.registry import known_format
from dv_maintenance.units import DAY, parse_size

if TYPE_CHECKING:
    from dv_maintenance.tables.model import Snapshot

DEFAULT_TARGET_FILE_SIZE = 256 << 20


def _partition_filter(value: Any) -> Any:
    """``k=v`` or ``k=v/k2=v2`` (percent-encoded, as ``partition_name`` writes it) as a mapping."""
    if isinstance(value, Mapping):
        # YAML reads `shop: 3` as a number and `day: 2026-01-01` as a date; table logs hold text.
        return {key: _partition_value(item) for key, item in value.items()}
    if not isinstance(value, str):
        return value
    if not value or any("=" not in part for part in value.split("/")):
        raise ValueError(f"not a partition: {value!r}; write column=value, or column=value/column=value")
    return parse_partition(value)


def _partition_value(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | date) else value


_MOST: Final = 2**31 - 1
PartitionFilter = Annotated[
    dict[str, str | None],
    BeforeValidator(
        # The pattern distinguishes texts that the key has from those that Dagster adds to everything for templates.
        _partition_filter,
        json_schema_input_type=dict[str, str | int | bool | None] | Annotated[str, Field(pattern=r"=|\{\{")],
    ),
    Field(min_length=1),
]


Codec = Literal["none", "snappy", "gzip", "zstd"]
"""Codecs that every reader of Parquet files knows. Without a level, because Arrow's writer of ORC files takes none."""


def _codec(value: Any) -> Any:
    """The codec in lower case. Raises ValueError that names the nearest one."""
    name, known = str(value).strip().lower(), get_args(Codec)
    if name not in known:
        near = get_close_matches(name, known, n=1)
        meant = f"did you mean {near[0]}?" if near else f"use one of {', '.join(known)}"
        raise ValueError(f"not a codec: {value!r}; {meant}")
    return name


class Policy(BaseModel):
    """Thresholds, limits and selections of one table's maintenance.

    A file is rewritten in three cases: its deletion vector (DV) names more than ``max_deleted_ratio`` of its rows; it
    has a DV but the log has no row count; it is small and merging it with others saves files.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_deleted_ratio: float = Field(default=0.05, ge=0, le=1, allow_inf_nan=False)
    """A file with a larger share of deleted rows is rewritten, strictly larger as in Delta's OPTIMIZE."""
    target_file_size: Size | None = Field(default=None, gt=0)
    """Bytes of a new file. ``None``: the table's own property; else, in formats that limit files by rows, the size of a
    full file in this table; else 256 MiB."""
    min_file_size: Size | None = Field(default=None, ge=0)
    """A file with fewer *live* bytes is small. ``None``: three quarters of the target, so that the files of one run are
    not small in the next."""
    compression: Annotated[Codec, BeforeValidator(_codec, json_schema_input_type=Codec)] | None = None
    """Codec of new files where the table's own property names none. ``None``: that of the files that are rewritten. It
    makes no file due for a rewrite."""
    min_input_files: int = Field(default=2, ge=2, le=_MOST, strict=True)
    """Small files without anything to purge are merged where at least this many fit into one new file."""
    cluster: bool = False
    """Cluster the unclustered files of a table that names its clustering columns, as ``dvm cluster`` does, instead of
    only merging them."""
    beside_optimizer: bool = False
    """Also work on a table that another optimizer maintains by itself. Otherwise its files are left to that one, and
    only what is asked for by name is done: purge, delete, vacuum."""
    compaction_tags: bool = False
    """Say of each file that a rewrite removes where its rows went, in tags that Databricks writes and reads (Delta)."""
    max_bytes: Size | None = Field(default=None, gt=0)
    """Bytes that one run may read."""
    max_files: int | None = Field(default=None, gt=0, le=_MOST, strict=True)
    """Files that one run may replace."""
    max_tasks: int | None = Field(default=None, gt=0, le=_MOST, strict=True)
    """Rewrite tasks of one run."""
    partitions: tuple[PartitionFilter, ...] = ()
    """Only these partitions. Each entry names values of some partition columns (``None``: null); a file must match one
    of the entries."""
    reads_per_day: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """How often the table is read a day, if nothing better is known. With it a file is rewritten once its readers have
    paid for that, and ``max_deleted_ratio`` applies only where it is set."""
    prices: Prices = Field(default_factory=Prices)
    """What reads and rewrites cost."""
    retention: Duration | None = Field(default=None, ge=0)
    """Vacuum: how long unneeded files are kept, milliseconds. ``None``: the table's own property."""
    clones: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Vacuum: paths or URIs of the table's shallow clones, in formats that have them. The table does not know its
    clones; files that they need are kept."""
    clones_under: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Vacuum: folders or prefixes that each run searches for shallow clones of the table."""
    protected_versions: tuple[Annotated[int, Field(ge=0, lt=1 << 63, strict=True)], ...] = ()
    """Vacuum: versions whose files are all kept."""
    protected_streams: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Vacuum: checkpoint folders of streaming readers; files that they may still have to read are kept (Delta)."""
    max_deleted_share: float | None = Field(default=None, gt=0, le=1, allow_inf_nan=False)
    """Vacuum: a run that would delete a larger share of the files, or of the bytes, is refused. ``None``: half of both,
    counting only files that the history does not know, in runs that delete at least a hundred of those."""
    quarantine: bool = False
    """Vacuum: set files aside below the table's root instead of deleting them; see ``dvm undelete``."""
    quarantine_retention: Duration = Field(default=QUARANTINE_RETENTION, ge=0)
    """Vacuum: how long files stay in quarantine, milliseconds; the next vacuum after that deletes them."""
    vacuum_every: Duration = Field(default=DAY, gt=0)
    """Watch: how often to search for files that a vacuum would delete, milliseconds."""
    vacuum_min_bytes: Size = Field(default=0, ge=0)
    """Watch: a vacuum is due from this many expired bytes on; from the first one on with ``erase_within``."""
    erase_within: Duration | None = Field(default=None, gt=0)
    """Rows must be gone from storage this long after their delete, milliseconds; see ``planning.deadlines``. ``None``:
    no deadline."""
    checks: CheckLimits = Field(default_factory=CheckLimits)
    """The limits beyond which a check warns or fails. They do not decide which work is done."""

    @field_validator("erase_within")
    @classmethod
    def _with_time_for_a_purge(cls, erase_within: int | None, info: ValidationInfo) -> int | None:
        """As far as the policy alone knows. Without a retention of its own the table's counts, and may be 0: the check
        ``erase_within`` knows it.
        """
        data = info.data
        every, aside = data.get("vacuum_every"), data.get("quarantine_retention")
        if erase_within is None or every is None or aside is None:
            return erase_within
        quarantine = aside + every if data.get("quarantine") else 0
        problem = Erasure(erase_within, data.get("retention") or 0, every, quarantine).problem
        if problem is not None:
            raise ValueError(problem)
        return erase_within

    @classmethod
    def load(cls, path: str) -> Policy:
        """A policy from a YAML file. Raises UsageError that names the key, the file and the line."""
        return validate(cls, load_yaml(path), what="policy")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], source: str = "policy") -> Policy:
        """A policy from plain values. Raises UsageError."""
        return validate(cls, Document(dict(values), source), what="policy")

    @property
    def guard(self) -> VacuumGuard:
        """What a vacuum must protect."""
        return VacuumGuard(
            self.max_deleted_share,
            self.protected_versions,
            self.protected_streams,
            self.quarantine,
            self.quarantine_retention,
        )

    @property
    def vacuum_request(self) -> VacuumRequest:
        """The vacuum that the policy asks for."""
        return VacuumRequest(
            retention=self.retention, clones=self.clones, clones_under=self.clones_under, guard=self.guard
        )

    def erasure(self, retention: int) -> Erasure | None:
        """``None`` without ``erase_within``. It may have a ``problem``.

        Parameters
        ----------
        retention
            the one in force, milliseconds: the policy's or, without one, the table's.
        """
        if self.erase_within is None:
            return None
        aside = self.quarantine_retention + self.vacuum_every if self.quarantine else 0
        return Erasure(self.erase_within, retention, self.vacuum_every, aside)

    def with_overrides(self, assignments: Iterable[str]) -> Policy:
        """The same policy with ``key=value`` changes; values are YAML (``max_bytes=10GiB``, ``partitions=[day=1]``).

        Raises
        ------
        UsageError
            a change is not an assignment, its key is unknown, or its value is invalid.
        """
        values = self.model_dump(exclude_unset=True)
        for assignment in assignments:
            key, equals, text = assignment.partition("=")
            if not equals or not key.strip():
                raise UsageError(f"not an assignment: {assignment!r}", next_step="write key=value")
            values[key.strip()] = parse_yaml(text, source=f"--set {assignment}").data
        return validate(type(self), Document(values, "command line"), what="policy")


def check_compression(policy: Policy, snapshot: Snapshot) -> None:
    """Raises UsageError if the policy names a compression, and tables of the format leave no choice."""
    if policy.compression is None:
        return
    known = known_format(snapshot.format)
    if known is not None and not known.compression:
        raise UsageError(
            f"{known.name} tables leave no choice of compression, and the policy names {policy.compression}",
            at=snapshot,
            next_step="leave out the policy's compression for this table",
        )


def target_file_size(policy: Policy, snapshot: Snapshot) -> int:
    """Bytes of a new file: the policy's setting, else the table's, else 256 MiB; see ``Policy.target_file_size``.

    Raises
    ------
    UsageError : the table's property is not a size.
    """
    if policy.target_file_size is not None:
        return policy.target_file_size
    # The only setting of a policy that depends on the table.
    own = known_format(snapshot.format)
    name = None if own is None else own.size_property
    if name is not None and name in snapshot.properties:
        try:
            size = parse_size(snapshot.properties[name])
        except ValueError as error:
            size, problem = 0, str(error)
        else:
            problem = "it must be above 0"
        if size <= 0:
            raise UsageError(
                f"table property {name}: {problem}",
                at=snapshot,
                next_step="correct the property, or set target_file_size in the policy",
            )
        return size
    return _bytes_of_rows(snapshot) or DEFAULT_TARGET_FILE_SIZE


def _bytes_of_rows(snapshot: Snapshot) -> int:
    """The size of a full file of the table, bytes; 0 if it is unknown."""
    rows, size = (pc.sum(snapshot.files[name]).as_py() or 0 for name in ("physical_rows", "size"))
    return snapshot.target_rows * size // rows if snapshot.target_rows and rows else 0
