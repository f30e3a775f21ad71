"""A maintenance plan as a value: ``plan`` builds it, ``explain`` prints it, ``apply`` runs it; to and from JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Literal

import orjson
from pydantic import ConfigDict, TypeAdapter, ValidationError

from dv_maintenance.errors import UsageError
from dv_maintenance.maintenance.planning.left_alone import LeftAlone
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.remedies import Remedy, run
from dv_maintenance.tables.model import FileKey
from dv_maintenance.tables.work import RewriteBin

_MAX_PLAN_BYTES = 1 << 30

Action = Literal["rewrite", "remove"]
Why = Literal[
    "deleted_ratio",
    "unknown_rows",
    "deletion_vector",
    "small",
    "wholly_deleted",
    "paid",
    "along",
    "deadline",
    "unordered",
    "overlapping",
    "unclustered",
    "other_columns",
    "small_unit",
]
_STRICT = ConfigDict(extra="forbid", strict=True)


@dataclass(frozen=True, slots=True)
class PlanInput:
    """A logical file that a step replaces.

    size : bytes.
    physical_rows : ``None`` if the log does not say.
    why : too many deleted rows; a DV but no row count; a DV, in a purge of all DVs; small; no row left; readers have
        paid for a rewrite; they have paid for half of one; a deadline; not yet in the requested order; or in the range
        of such files; not yet clustered, clustered by other columns, or in a unit that joins such files.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    path: str
    dv_id: str | None
    size: int
    physical_rows: int | None
    deleted_rows: int
    why: Why


@dataclass(frozen=True, slots=True)
class Effect:
    """The expected result of a step.

    Bytes are estimated from the share of live rows. Rows are exact, or ``None`` if the log does not say how many there
    are.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    files_after: int
    dvs_removed: int
    rows_purged: int
    live_rows: int | None
    bytes_after: int


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a step, without its deletion vectors.

    row_groups : of its files; ``None`` if their footers were not read.
    row_groups_copied, bytes_copied : of these, what is copied without being decoded.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    bytes_read: int
    bytes_written: int
    files_read: int
    row_groups: int | None = None
    row_groups_copied: int = 0
    bytes_copied: int = 0


@dataclass(frozen=True, slots=True)
class Metered:
    """What the meter says of a step; see ``meter.decide``.

    paid : seconds of CPU that the readers of its files have paid so far.
    cost : seconds of CPU that the step costs, including the old copies until retention is over.
    purge_by : when it must be committed at the latest, epoch milliseconds; ``None`` without a deadline.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    paid: float
    cost: float
    purge_by: int | None = None


@dataclass(frozen=True, slots=True)
class Recoding:
    """Live rows that a step moves from files in one codec to files in another one.

    source, target : the codecs; ``none``: no compression.
    bytes_before : compressed bytes of the rows, in their files.
    bytes_after : in the new files, as far as a sample of the rows tells.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    source: str
    target: str
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One all-or-nothing replacement: the live rows of ``inputs`` move to new files.

    All inputs belong to one partition, named as by ``partition_name``. If they have no live rows, nothing is read or
    written (``remove``).

    recoded : what changes its codec, if the footers of the files were read.
    keeps_order : its rows stay in their order, although the plan orders those of other steps.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    id: str
    action: Action
    partition: str
    reason: str
    inputs: tuple[PlanInput, ...]
    expected: Effect
    cost: Cost
    metered: Metered | None = None
    recoded: tuple[Recoding, ...] = ()
    keeps_order: bool = False


@dataclass(frozen=True, slots=True)
class KeptFile:
    """A file that is left unchanged, with its own reason.

    due_at : when it is expected to be rewritten if nothing else changes, epoch milliseconds; ``None``: never, or not
        because of what time brings.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    path: str
    size: int
    deleted_rows: int
    reason: str
    due_at: int | None


@dataclass(frozen=True, slots=True, repr=False)
class MaintenancePlan:
    """The steps for ``table`` at ``version``, in order of benefit.

    Every live file is in exactly one step or counted in ``left_alone``.

    Attributes
    ----------
    purge
        every deletion vector is purged, independent of thresholds, and no other file is touched.
    target_file_size
        bytes, derived from policy and table.
    order_by
        columns by which the rows of a step are ordered, see ``zorder``; of a step with ``keeps_order``, none.
    unit
        the new unit of the ordered files in a clustered table, see ``cluster``.
    basis
        what decided: the reads that were metered, or why thresholds did; empty for a plan that needs neither.
    next_due_at
        when the next run will be worth its cost, epoch milliseconds; ``None``: unknown or never.
    kept
        the files of ``left_alone`` one by one, those due first at the top; as many as the caller asked for.
    kept_not_listed
        how many of them are not in ``kept``.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    table: str
    format: str
    version: int
    purge: bool
    target_file_size: int
    policy: Policy
    steps: tuple[PlanStep, ...]
    left_alone: tuple[LeftAlone, ...]
    order_by: tuple[str, ...] = ()
    unit: str = ""
    basis: str = ""
    next_due_at: int | None = None
    kept: tuple[KeptFile, ...] = ()
    kept_not_listed: int = 0

    def __repr__(self) -> str:
        from dv_maintenance.maintenance.planning.explain import explain

        return explain(self)

    def _repr_markdown_(self) -> str:
        return repr(self)

    def bin_of(self, step: PlanStep) -> RewriteBin:
        """What a step asks of the table."""
        keys = tuple(FileKey(each.path, each.dv_id) for each in step.inputs)
        return RewriteBin(step.id, step.partition, keys, () if step.keeps_order else self.order_by)

    def to_json(self) -> dict[str, Any]:
        """Plain data that ``from_json`` reads back."""
        body: dict[str, Any] = orjson.loads(_adapter().dump_json(self))
        return body

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> MaintenancePlan:
        """A plan from plain data of any origin. Types, ranges and consistency are checked here; statements about the
            table are checked when the plan is applied.

        Raises
        ------
        UsageError
            not a plan.
        """
        try:
            plan = _adapter().validate_json(orjson.dumps(body))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            key = ".".join(map(str, first["loc"])) or "the whole"
            raise _not_a_plan(f"{key}: {first['msg']}") from None
        except (TypeError, orjson.JSONEncodeError) as error:
            raise _not_a_plan(str(error)) from None
        check_plan(plan)
        return plan

    @classmethod
    def load(cls, path: str) -> MaintenancePlan:
        """A plan from a JSON file. Raises UsageError."""
        try:
            with open(path, "rb") as file:
                text = file.read(_MAX_PLAN_BYTES + 1)
        except OSError as error:
            raise UsageError(f"cannot read the plan {path}: {error.strerror}", next_step="check the path") from error
        if len(text) > _MAX_PLAN_BYTES:
            raise _not_a_plan(f"{path} is larger than {_MAX_PLAN_BYTES} bytes")
        try:
            body = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise _not_a_plan(f"{path} is not JSON: {error}") from None
        return cls.from_json(body)


def check_plan(plan: MaintenancePlan) -> None:
    """Check the invariants of a plan. Raises UsageError."""
    numbers = [plan.version, plan.target_file_size - 1]
    seen: set[tuple[str, str | None]] = set()
    for step in plan.steps:
        if not step.inputs:
            raise _not_a_plan(f"step {step.id} has no inputs")
        for each in step.inputs:
            key = (each.path, each.dv_id)
            if key in seen:
                raise _not_a_plan(f"{each.path} is an input more than once")
            seen.add(key)
            if step.action == "remove" and not _wholly_deleted(each):
                raise _not_a_plan(
                    f"step {step.id} would remove {each.path}, which has live rows or an unknown number of them"
                )
            numbers += (each.size, each.deleted_rows, each.physical_rows or 0)
    if len({step.id for step in plan.steps}) < len(plan.steps):
        raise _not_a_plan("two steps share an id")
    if min(numbers) < 0:
        raise _not_a_plan("it has a negative number where only 0 and above are valid")


def _wholly_deleted(each: PlanInput) -> bool:
    return each.dv_id is not None and each.deleted_rows == each.physical_rows


def _not_a_plan(why: str) -> UsageError:
    return UsageError(f"not a valid plan: {why}", next_step=Remedy("make a new one with {}", (run("plan", "TABLE"),)))


@cache
def _adapter() -> TypeAdapter[MaintenancePlan]:
    return TypeAdapter(MaintenancePlan)
