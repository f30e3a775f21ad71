"""Maintenance commits: replacements of files by others with the same live rows, and the empty commits of a vacuum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow.compute as pc

from dv_maintenance.dv import DeletionVector, DvDescriptor
from dv_maintenance.errors import DamagedTableError
from dv_maintenance.files.arrays import strings
from dv_maintenance.storage import Storage
from dv_maintenance.tables.columns import path_of
from dv_maintenance.tables.delta.commit.conflicts import Since, layout_change, lost_replacements
from dv_maintenance.tables.delta.commit.dv_files import CommitDvs
from dv_maintenance.tables.delta.commit.live_file import LiveFile
from dv_maintenance.tables.delta.commit.publish import Draft, operation_info, publish
from dv_maintenance.tables.delta.commit.rebase import Rebase, takes_dvs
from dv_maintenance.tables.delta.load import load_snapshot
from dv_maintenance.tables.delta.log.actions import Action, Metadata
from dv_maintenance.tables.delta.rows.clustering import clustering_columns, new_unit, shared_unit
from dv_maintenance.tables.delta.rows.compaction_tags import compaction_tags
from dv_maintenance.tables.delta.rows.layout import file_tags
from dv_maintenance.tables.delta.rows.order import order_tags
from dv_maintenance.tables.delta.rows.row_tracking import DOMAIN, assigns_row_ids, highest_row_id, numbered
from dv_maintenance.tables.delta.rows.stats import stats_json
from dv_maintenance.tables.delta.rows.tasks import log_path
from dv_maintenance.tables.delta.snapshot import DeltaSnapshot
from dv_maintenance.tables.gates import Input, check_replacements, check_stored
from dv_maintenance.tables.model import FileKey
from dv_maintenance.tables.publish import before_the_commit
from dv_maintenance.tables.staying import Stay, outcome_of
from dv_maintenance.tables.table import CommitOutcome, Replacement
from dv_maintenance.tables.work import OutputFile
from dv_maintenance.units import epoch_millis

_REASONS_SHOWN: Final = 3
_NONE: Final = DeletionVector.empty()

# A row of the snapshot's files, as a dict.
_Row = Mapping[str, Any]


def commit_replacements(
    storage: Storage,
    base: DeltaSnapshot,
    replacements: Sequence[Replacement],
    *,
    operation: Mapping[str, Any],
    max_attempts: int = 10,
) -> CommitOutcome:
    """Commit the replacements whose inputs are all still live, or whose concurrent deletes can be carried over to the
    new files (see ``rebase``). Report all other replacements as lost.

    Every commit since ``base`` is checked, also before the first attempt. No row changes: actions have
    ``dataChange`` false, and removes name the full DV (protocol: Add File and Remove File, Action Reconciliation).
    ``operation``: ``{"name": "OPTIMIZE" | "REORG", "parameters": {...}}``; with ``"compactionTags": True`` removes say
    where their rows went (see ``rows.compaction_tags``).

    Raises
    ------
    VerificationError : the replacements would change what a query returns; nothing was committed.
    DamagedTableError : an output has the name of a file that is already in the table; nothing was committed.
    ConflictError, StorageError, UnsupportedFeatureError, RefusedError : see ``publish``.
    """
    rows = _live_rows(base, replacements)
    with before_the_commit():
        _verify(storage, base, replacements, rows)
    commit = _Commit(storage, base, replacements, operation, {key: LiveFile.from_row(row) for key, row in rows.items()})
    with commit.dvs.cleaned_up():
        published = publish(storage, base, commit.compose, writes="rewrite", max_attempts=max_attempts)
        commit.dvs.keep = published.version is not None
    outcome = outcome_of(published, commit.stay, commit.lost, lambda file: file.key)
    return replace(outcome, reason=_reasons(commit.lost))


@dataclass(slots=True)
class _Commit:
    """The commit, decided again in each attempt. ``live``: inputs that are live at the base version."""

    storage: Storage
    base: DeltaSnapshot
    replacements: Sequence[Replacement]
    operation: Mapping[str, Any]
    live: Mapping[FileKey, LiveFile]
    deleted_at: int = field(default_factory=epoch_millis)
    stay: dict[str, Stay[LiveFile]] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    rebase: Rebase = field(init=False)
    dvs: CommitDvs = field(init=False)

    def __post_init__(self) -> None:
        self.dvs = CommitDvs(self.storage)
        self.rebase = Rebase(self.storage, self.live)

    def compose(self, since: Since) -> Draft | None:
        self._decide(since)
        if not self.stay:
            return None
        removes = [
            file.remove(self.deleted_at, data_change=False)
            for each in self.replacements
            if each.id in self.stay
            for file in self._placed(each)
        ]
        protocol, metadata = since.protocol or self.base.protocol, since.metadata or self.base.metadata
        adds = self._adds(metadata, clustering_columns({**self.base.domains, **since.domains}))
        if taken := [add["add"]["path"] for add in adds if since.identify(add["add"]["path"]) in since.added]:
            raise _taken(self.base, f"another commit added the new file {taken[0]}")
        info = operation_info(
            self.base,
            str(self.operation["name"]),
            self.operation.get("parameters", {}),
            _metrics(adds, removes),
            blind=False,
        )
        if assigns_row_ids(protocol, metadata):
            taken_ids = since.domains.get(DOMAIN, self.base.domains.get(DOMAIN))
            adds = numbered(adds, taken_ids, since.version + 1, highest_row_id(self.base.files))
        return Draft(info, [*removes, *adds])

    def _decide(self, since: Since) -> None:
        change = layout_change(self.base.protocol, self.base.metadata, since)
        self.lost, self.stay = {}, {}
        changed = {} if change else lost_replacements(self.replacements, self.live, since)
        rebases = takes_dvs(since.protocol or self.base.protocol, since.metadata or self.base.metadata)
        for each in self.replacements:
            found: Stay[LiveFile] | str
            if change:
                found = change
            elif each.id not in changed:
                found = Stay(tuple(self.live[key] for key in each.inputs), (_NONE,) * len(each.outputs), carried=False)
            elif rebases and each.kept and all(key in self.live for key in each.inputs):
                found = self.rebase.carry(each, since)
            else:
                found = changed[each.id]
            if isinstance(found, str):
                self.lost[each.id] = found
            else:
                self.stay[each.id] = found

    def _adds(self, metadata: Metadata, clustering: tuple[tuple[str, ...], ...]) -> list[Action]:
        """The adds of the new files with their deleted rows. Omits files without live rows."""
        new = [
            (each, output, dv)
            for each in self.replacements
            if each.id in self.stay
            for output, dv in zip(each.outputs, self.stay[each.id].deleted, strict=True)
            if not dv or dv.cardinality < output.rows
        ]
        descriptors = iter(self.dvs.place(tuple(dv for _, _, dv in new if dv)))
        return [
            _add(
                self.storage,
                output,
                self._tagged(each),
                self.live[each.inputs[0]],
                stats_json(output, metadata, clustering, tight=not dv),
                next(descriptors) if dv else None,
            )
            for each, output, dv in new
        ]

    def _placed(self, replacement: Replacement) -> Sequence[LiveFile]:
        """The inputs, tagged with the place of their rows if that is wanted and known. Rows that were carried over have
        no tags: the DVs of their removes are not those that the rewrite read.
        """
        stay = self.stay[replacement.id]
        inputs = stay.inputs
        known = replacement.kept and len(replacement.outputs) == 1 and not replacement.recounted
        if not (self.operation.get("compactionTags") and known) or stay.carried:
            return inputs
        path = log_path(self.storage, replacement.outputs[0].uri)
        tags = compaction_tags(path, replacement.kept, [file.deleted_rows for file in inputs])
        return [file.tagged(each) for file, each in zip(inputs, tags, strict=True)]

    def _tagged(self, replacement: Replacement) -> Action:
        """What each new file says of itself, beside its rows."""
        sources = [self.live[key] for key in replacement.inputs]
        columns = [path_of(name, self.base.schema) for name in replacement.order_by]
        unit, provider = new_unit(replacement.unit, columns) if replacement.unit else shared_unit(sources)
        order = {} if replacement.unit else order_tags(replacement.order_by, sources)
        tags = {**file_tags(self.base.protocol), **unit, **order}
        return {**({"tags": tags} if tags else {}), **({"clusteringProvider": provider} if provider else {})}


def commit_info_only(
    storage: Storage, operation: str, parameters: Mapping[str, Any], metrics: Mapping[str, int]
) -> int:
    """Write a commit without file actions (``VACUUM START``, ``VACUUM END``) and return its version.

    Raises
    ------
    As ``publish``.
    """
    base = load_snapshot(storage)
    info = operation_info(base, operation, parameters, metrics, blind=True)
    version = publish(storage, base, lambda _: Draft(info), writes="log").version
    assert version is not None  # there is always something to commit
    return version


# -- gates -------------------------------------------------------------------------------------------------------


def _verify(
    storage: Storage, base: DeltaSnapshot, replacements: Sequence[Replacement], live: Mapping[FileKey, _Row]
) -> None:
    """Refuse replacements that can't be right, whatever other writers commit. Replacements with an input that is not
    live at ``base`` are lost anyway and not checked.
    """
    inputs = {key: Input(row["partition"], row["physical_rows"], row["deleted_rows"]) for key, row in live.items()}
    check_replacements(storage, base, replacements, inputs)
    outputs = [output for replacement in replacements for output in replacement.outputs]
    paths = [log_path(storage, output.uri) for output in outputs]
    known = base.files.filter(pc.is_in(base.files["path"], strings(paths)))
    if known.num_rows:
        raise _taken(base, f"a new file has the name of a live one: {known['path'][0].as_py()}")
    check_stored(storage, base, outputs)


def _taken(base: DeltaSnapshot, what: str) -> DamagedTableError:
    """Not a VerificationError: the caller then deletes the new files, but this one is a live file of the table."""
    return DamagedTableError(what, at=base, next_step="report this bug and attach the plan")


# -- actions -----------------------------------------------------------------------------------------------------


def _live_rows(base: DeltaSnapshot, replacements: Sequence[Replacement]) -> dict[FileKey, _Row]:
    """The snapshot's rows of the inputs that are live in it."""
    wanted = {key for replacement in replacements for key in replacement.inputs}
    paths = strings([key.path for key in wanted])
    rows = base.files.filter(pc.is_in(base.files["path"], paths)).to_pylist()
    found = {FileKey(row["path"], row["dv_id"]): row for row in rows}
    return {key: row for key, row in found.items() if key in wanted}


def _add(
    storage: Storage,
    output: OutputFile,
    tagged: Action,
    source: LiveFile,
    stats: str,
    dv: DvDescriptor | None,
) -> Action:
    return {
        "add": {
            "path": log_path(storage, output.uri),
            # Spelled as in its sources.
            "partitionValues": dict(source.partition_values),
            "size": output.size,
            "modificationTime": output.modified,
            "dataChange": False,
            "stats": stats,
            **tagged,
            **({} if dv is None else {"deletionVector": dv.to_json()}),
        }
    }


def _metrics(adds: Sequence[Action], removes: Sequence[Action]) -> dict[str, int]:
    """The metrics as delta-spark records them for an OPTIMIZE."""
    sizes = sorted(add["add"]["size"] for add in adds)
    quantiles = {
        name: sizes[min(len(sizes) * quarters // 4, len(sizes) - 1)] if sizes else 0
        for quarters, name in enumerate(("minFileSize", "p25FileSize", "p50FileSize", "p75FileSize", "maxFileSize"))
    }
    carried = sum("deletionVector" in add["add"] for add in adds)
    return {
        "numAddedFiles": len(sizes),
        "numRemovedFiles": len(removes),
        "numAddedBytes": sum(sizes),
        "numRemovedBytes": sum(remove["remove"]["size"] for remove in removes),
        **quantiles,
        "numDeletionVectorsRemoved": sum("deletionVector" in remove["remove"] for remove in removes),
        **({"numDeletionVectorsAdded": carried} if carried else {}),
    }


def _reasons(lost: Mapping[str, str]) -> str:
    shown = [f"{name}: {reason}" for name, reason in list(lost.items())[:_REASONS_SHOWN]]
    if len(lost) > _REASONS_SHOWN:
        shown.append(f"and {len(lost) - _REASONS_SHOWN} more")
    return "; ".join(shown)
