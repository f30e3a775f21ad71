"""Commits of maintenance: files replaced by others with the same live rows, and the empty commits of a vacuum."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pyarrow.compute as pc

from dv_maintenance.dv import DvDescriptor
from dv_maintenance.errors import DamagedTableError, VerificationError
from dv_maintenance.storage import Storage
from dv_maintenance.tables.delta.actions import Action, Metadata
from dv_maintenance.tables.delta.columns import strings
from dv_maintenance.tables.delta.conflicts import Since, layout_change, lost_replacements
from dv_maintenance.tables.delta.publish import Draft, operation_info, publish
from dv_maintenance.tables.delta.snapshot import DeltaSnapshot, load_snapshot
from dv_maintenance.tables.delta.stats import stats_json
from dv_maintenance.tables.delta.tasks import log_path
from dv_maintenance.tables.model import CommitOutcome, FileKey, OutputFile, Replacement

__all__ = ["commit_info_only", "commit_replacements"]

_HEAD_THREADS: Final = 16
_REASONS_SHOWN: Final = 3

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
    """Commit every replacement whose inputs are all still live; report the others as lost.

    Everything committed since ``base`` is checked, also before the first attempt. No row changes: actions have
    ``dataChange`` false, and removes name the full DV (protocol: Add File and Remove File, Action Reconciliation).
    ``operation``: ``{"name": "OPTIMIZE" | "REORG", "parameters": {...}}``.

    Raises
    ------
    VerificationError : the replacements would change what a query returns; nothing was committed.
    DamagedTableError : an output has the name of a file that the table has already; nothing was committed.
    ConflictError, StorageError, UnsupportedFeatureError, RefusedError : see ``publish``.
    """
    live = _live_rows(base, replacements)
    _verify(storage, base, replacements, live)
    deleted_at = time.time_ns() // 1_000_000
    lost: dict[str, str] = {}
    committed: tuple[str, ...] = ()

    def compose(since: Since) -> Draft | None:
        nonlocal lost, committed
        change = layout_change(base.protocol, base.metadata, since)
        if change is None:
            lost = lost_replacements(replacements, live, since)
        else:
            lost = {replacement.id: change for replacement in replacements}
        stay = [replacement for replacement in replacements if replacement.id not in lost]
        committed = tuple(replacement.id for replacement in stay)
        if not stay:
            return None
        inputs = [(key, live[key]) for replacement in stay for key in replacement.inputs]
        removes: list[Action] = [{"remove": _remove(row, deleted_at)} for _, row in inputs]
        adds: list[Action] = [
            {"add": _add(storage, output, live[replacement.inputs[0]], since.metadata or base.metadata)}
            for replacement in stay
            for output in replacement.outputs
        ]
        if taken := [add["add"]["path"] for add in adds if since.identify(add["add"]["path"]) in since.added]:
            raise _taken(base, f"another commit added the new file {taken[0]}")
        info = operation_info(
            base,
            str(operation["name"]),
            operation.get("parameters", {}),
            _metrics(stay, [row for _, row in inputs]),
            blind=False,
        )
        return Draft(info, [*removes, *adds])

    published = publish(storage, base, compose, writes="rewrite", max_attempts=max_attempts)
    return CommitOutcome(
        version=published.version,
        committed=committed,
        lost=tuple(lost),
        attempts=max(1, published.attempts),
        reason=_reasons(lost),
    )


def commit_info_only(
    storage: Storage, operation: str, parameters: Mapping[str, Any], metrics: Mapping[str, int]
) -> int:
    """Write a commit without file actions (``VACUUM START``, ``VACUUM END``) and return its version.

    Raises
    ------
    What ``publish`` raises.
    """
    base = load_snapshot(storage)
    info = operation_info(base, operation, parameters, metrics, blind=True)
    version = publish(storage, base, lambda _: Draft(info), writes="vacuum").version
    assert version is not None  # there always is something to commit
    return version


# -- gates -------------------------------------------------------------------------------------------------------


def _verify(
    storage: Storage, base: DeltaSnapshot, replacements: Sequence[Replacement], live: Mapping[FileKey, _Row]
) -> None:
    """Refuse what can't be right, whatever others commit. Replacements with an input that is not live at ``base`` are
    lost anyway and not looked at closer.
    """
    inputs = [key for replacement in replacements for key in replacement.inputs]
    outputs = [output for replacement in replacements for output in replacement.outputs]
    for what, names in (
        ("replacements share an id", [replacement.id for replacement in replacements]),
        ("replacements share an input", inputs),
        ("outputs share a file", [storage.path_of(output.uri) for output in outputs]),
    ):
        if len(set(names)) < len(names):
            raise _wrong(base, f"two {what}")
    for replacement in replacements:
        if not replacement.inputs:
            raise _wrong(base, f"replacement {replacement.id} has no inputs")
        rows = [live[key] for key in replacement.inputs if key in live]
        if len(rows) == len(replacement.inputs):
            _verify_replacement(base, replacement, rows)
    paths = [log_path(storage, output.uri) for output in outputs]
    known = base.files.filter(pc.is_in(base.files["path"], strings(paths)))
    if known.num_rows:
        raise _taken(base, f"a new file has the name of a live one: {known['path'][0].as_py()}")
    _verify_files(storage, base, outputs)


def _verify_replacement(base: DeltaSnapshot, replacement: Replacement, rows: Sequence[_Row]) -> None:
    strangers = {row["partition"] for row in rows} - {replacement.partition}
    if strangers:
        raise _wrong(
            base,
            f"replacement {replacement.id} of partition {replacement.partition!r} has inputs of {sorted(strangers)}",
        )
    if any(row["physical_rows"] is None for row in rows):
        return
    before = sum(row["physical_rows"] - row["deleted_rows"] for row in rows)
    after = sum(output.rows for output in replacement.outputs)
    if before != after:
        raise _wrong(base, f"replacement {replacement.id} turns {before} live rows into {after}")


def _verify_files(storage: Storage, base: DeltaSnapshot, outputs: Sequence[OutputFile]) -> None:
    def problem(output: OutputFile) -> str | None:
        path = storage.path_of(output.uri)
        try:
            size = storage.head(path).size
        except FileNotFoundError:
            return f"the new file {path} does not exist"
        return None if size == output.size else f"the new file {path} has {size} bytes, not {output.size}"

    with ThreadPoolExecutor(_HEAD_THREADS) as pool:
        for found in pool.map(problem, outputs):
            if found is not None:
                raise _wrong(base, found)


def _wrong(base: DeltaSnapshot, what: str) -> VerificationError:
    return VerificationError(
        what,
        table=base.table,
        version=base.version,
        done="new files may have been written, nothing was committed",
        next_step="report this together with the plan; vacuum deletes the files that no commit names",
    )


def _taken(base: DeltaSnapshot, what: str) -> DamagedTableError:
    """Not a VerificationError: after one of those new files are deleted, and this one is somebody's live file."""
    return DamagedTableError(
        what, table=base.table, version=base.version, next_step="report this together with the plan"
    )


# -- actions -----------------------------------------------------------------------------------------------------


def _live_rows(base: DeltaSnapshot, replacements: Sequence[Replacement]) -> dict[FileKey, _Row]:
    """The snapshot's rows of those inputs that are live in it."""
    wanted = {key for replacement in replacements for key in replacement.inputs}
    paths = strings([key.path for key in wanted])
    rows = base.files.filter(pc.is_in(base.files["path"], paths)).to_pylist()
    found = {FileKey(row["path"], row["dv_id"]): row for row in rows}
    return {key: row for key, row in found.items() if key in wanted}


def _remove(row: _Row, deleted_at: int) -> dict[str, Any]:
    optional = {
        "tags": _map(row["tags"]),
        # Literally as it was read: the id of a DV hangs on whether it names an offset.
        "deletionVector": None if row["dv"] is None else _descriptor(row["dv"]),
        "baseRowId": row["base_row_id"],
        "defaultRowCommitVersion": row["default_row_commit_version"],
    }
    return {
        "path": row["path"],
        "deletionTimestamp": deleted_at,
        "dataChange": False,
        "extendedFileMetadata": True,
        "partitionValues": _map(row["partition_values"]) or {},
        "size": row["size"],
        **_present(optional),
    }


def _add(storage: Storage, output: OutputFile, source: _Row, metadata: Metadata) -> dict[str, Any]:
    return {
        "path": log_path(storage, output.uri),
        # As its sources spell them.
        "partitionValues": _map(source["partition_values"]) or {},
        "size": output.size,
        "modificationTime": output.modified,
        "dataChange": False,
        "stats": stats_json(output, metadata),
    }


def _descriptor(dv: Mapping[str, Any]) -> dict[str, Any]:
    return DvDescriptor(dv["storage_type"], dv["path_or_inline"], dv["offset"], dv["size"], dv["cardinality"]).to_json()


def _map(pairs: Any) -> dict[str, str | None] | None:
    return None if pairs is None else dict(pairs)


def _present(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}


def _metrics(replacements: Sequence[Replacement], removed: Sequence[_Row]) -> dict[str, int]:
    """As delta-spark records an OPTIMIZE."""
    sizes = sorted(output.size for replacement in replacements for output in replacement.outputs)
    quantiles = {
        name: sizes[min(len(sizes) * quarters // 4, len(sizes) - 1)] if sizes else 0
        for quarters, name in enumerate(("minFileSize", "p25FileSize", "p50FileSize", "p75FileSize", "maxFileSize"))
    }
    return {
        "numAddedFiles": len(sizes),
        "numRemovedFiles": len(removed),
        "numAddedBytes": sum(sizes),
        "numRemovedBytes": sum(row["size"] for row in removed),
        **quantiles,
        "numDeletionVectorsRemoved": sum(row["dv"] is not None for row in removed),
    }


def _reasons(lost: Mapping[str, str]) -> str:
    shown = [f"{name}: {reason}" for name, reason in list(lost.items())[:_REASONS_SHOWN]]
    if len(lost) > _REASONS_SHOWN:
        shown.append(f"and {len(lost) - _REASONS_SHOWN} more")
    return "; ".join(shown)
