"""Purges of data-evolution tables: each range of row ids without a gap becomes a file of its own.

Rule: the id of a row is the first id of its file plus its position (data evolution of Paimon's documentation). So a
file can't lack a row in the middle, and live rows keep their ids in as many files as there are ranges of them. Files of
ranges with a gap in between are never merged, not by Paimon either. So there must be few of them, or large ones.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow.compute as pc

from dv_maintenance.dv import DeletionVector
from dv_maintenance.errors import DamagedTableError, RefusedError, UnsupportedFeatureError
from dv_maintenance.files.arrays import flags, int64s
from dv_maintenance.remedies import run
from dv_maintenance.tables.dv_codecs import load
from dv_maintenance.tables.paimon.features import check_rows_readable
from dv_maintenance.tables.paimon.rows.evolution import parts_with, sharing, suffix_of, with_uncut
from dv_maintenance.tables.paimon.rows.files import read_dvs
from dv_maintenance.tables.paimon.rows.formats import check_instants, codec_of, why_not_written
from dv_maintenance.tables.paimon.rows.lines import otherwise
from dv_maintenance.tables.paimon.rows.tasks import COLUMNS, Scan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from dv_maintenance.tables.paimon.snapshot import PaimonSnapshot
    from dv_maintenance.tables.work import SourceFile

_FEW: Final = 10
# A file of this size costs little to open compared with reading it.
_BYTES: Final = 8 << 20
# Of a file: what decides whether its columns can be read.
_SHAPE: Final = ("schema_id", "write_cols")


def live_ranges(deleted: DeletionVector, rows: int) -> list[tuple[int, int]]:
    """Maximal runs of live positions among ``rows`` rows, ascending, as ``(start, stop)``.

    >>> live_ranges(DeletionVector.from_positions([0, 3, 4]), 6)
    [(1, 3), (5, 6)]
    """
    edges = [(0, 0), *deleted.ranges(), (rows, rows)]
    return [(stop, start) for (_, stop), (start, _) in pairwise(edges) if stop < start]


def new_files(snapshot: PaimonSnapshot) -> Any:
    """How many ranges of live rows each file has. A file whose deletion vector can't be read counts as one range: what
    reads it, says so.
    """
    if "ranges" not in snapshot.derived:
        files = snapshot.files
        found = np.ones(files.num_rows, np.int64)
        at = np.flatnonzero(_partly_deleted(snapshot))
        chosen = files.take(int64s(at))
        rows_of = dict(zip(chosen["dv_id"].to_pylist(), chosen["physical_rows"].to_pylist(), strict=True))
        wanted = [dv for dv in snapshot.index.dvs if dv.id in rows_of]
        try:
            counts = read_dvs(
                snapshot.layout, wanted, snapshot.version, lambda dv, entry: len(live_ranges(dv, rows_of[entry.id]))
            )
        except DamagedTableError:
            counts = {}
        found[at] = [counts.get(each, 1) for each in rows_of]
        snapshot.derived["ranges"] = found
    return snapshot.derived["ranges"]


def barred(snapshot: PaimonSnapshot) -> dict[str, Any]:
    """See ``Snapshot.barred``: of the files with a DV. Files whose rows are all deleted are removed with all that have
    other columns of these rows.
    """
    files, some = snapshot.files, _partly_deleted(snapshot)
    whole = flags(pc.equal(files["deleted_rows"], files["physical_rows"]))
    other = run("engine-sql", f"{snapshot.table} purge")
    shared = flags(pc.is_in(files["path"], value_set=sharing(snapshot.parts)))
    found = {
        f"a file of blobs or vectors has rows of it and of others: only Paimon rewrites it, {other}": (whole | some)
        & shared
    }
    some = some & ~shared
    for reason, mask in _not_rewritten(snapshot, some):
        found[f"{reason}, {other}"] = some & mask
        some = some & ~mask
    return {reason: mask for reason, mask in found.items() if mask.any()}


def _partly_deleted(snapshot: PaimonSnapshot) -> Any:
    files = snapshot.files
    return flags(pc.is_valid(files["dv_id"])) & flags(pc.less(files["deleted_rows"], files["physical_rows"]))


def _not_rewritten(snapshot: PaimonSnapshot, some: Any) -> Iterator[tuple[str, Any]]:
    """Why files with live and deleted rows are not rewritten here, and which ones."""
    files = snapshot.files
    if not some.any():
        return
    if (reason := _table_reason(snapshot)) is not None:
        yield f"{reason}: only Paimon rewrites it", some
        return
    yield (
        "its rows have no row ids (data-evolution.enabled): only Paimon rewrites it",
        ~flags(pc.is_valid(files["first_row_id"])),
    )
    yield (
        "vectors of its rows are in other files, of a format that this tool does not cut: only Paimon rewrites it",
        flags(pc.is_in(files["path"], value_set=with_uncut(snapshot.parts, lines=otherwise(snapshot) is None))),
    )
    most = np.maximum(_FEW, files["size"].to_numpy() // _BYTES)
    yield (
        (
            "its live rows have too many gaps between their row ids (data-evolution.enabled), and would become as many "
            "small files, which nothing could merge: only Paimon gives new ids"
        ),
        new_files(snapshot) > most,
    )
    yield from _unreadable(snapshot, some)


def _table_reason(snapshot: PaimonSnapshot) -> str | None:
    """Why no rows of the table are written into new files."""
    if (reason := next(why_not_written(snapshot), None)) is not None:
        return reason
    try:
        codec_of(snapshot)
        check_rows_readable(snapshot.table_schema, snapshot.table, snapshot.version, moving=True)
    except RefusedError as error:
        return error.message
    return None


def _unreadable(snapshot: PaimonSnapshot, some: Any) -> Iterator[tuple[str, Any]]:
    """Reasons why the rows of files can't be read as the newest columns. Reads the schemas of older files."""
    files = snapshot.files
    places = np.flatnonzero(some)
    chosen = files.take(int64s(places))
    parts = parts_with(snapshot.parts, chosen["path"].to_pylist())
    scan = Scan(snapshot.layout, snapshot, (), parts, moving=True)
    # Files of the same schemas, columns and formats have the same reason.
    alike: dict[Any, list[int]] = defaultdict(list)
    rows = dict(zip(places.tolist(), chosen.select(COLUMNS).to_pylist(), strict=True))
    for at, row in rows.items():
        group = scan.parts.get(row["path"], (row,))
        alike[tuple((*(part[name] for name in _SHAPE), suffix_of(part["path"])) for part in group)].append(at)
    for some_alike in alike.values():
        try:
            check_instants(snapshot, formats_of(group_of(scan, rows[some_alike[0]])))
        except (RefusedError, UnsupportedFeatureError) as error:
            mask = np.zeros(files.num_rows, np.bool_)
            mask[some_alike] = True
            yield f"{error.message}: only Paimon rewrites it", mask


def group_of(scan: Scan, row: Mapping[str, Any]) -> SourceFile:
    """The files that hold the rows of one of ``snapshot.files``, to be read as the newest columns that new files have.
    Raises as ``scan_tasks``.
    """
    task = scan.of(scan.written(row)).task(row)
    source = task.sources[0]
    return source if source.format == "parts" else replace(source, schema=task.schema)


def formats_of(source: SourceFile) -> list[str]:
    """The formats of the files that hold the rows of a source."""
    return [part["format"] for part in source.details["parts"]] if source.format == "parts" else [source.format]


def file_rows(snapshot: PaimonSnapshot, sources: Sequence[SourceFile]) -> tuple[int, ...]:
    """The number of rows of each new file. Reads the deletion vector.

    Raises
    ------
    RefusedError : there are several sources.
    DamagedDeletionVectorError, StorageError : the deletion vector can't be read.
    """
    if len(sources) > 1:
        raise RefusedError(
            "no rewrite of several files of this table into one: their row ids have gaps (data-evolution.enabled)",
            at=snapshot,
            next_step="let Paimon compact the table",
        )
    source = sources[0]
    fetch = snapshot.layout.storage.get_range
    deleted = DeletionVector.empty() if source.dv is None else load(source.dv, fetch, rows=source.rows, of=source.uri)
    return tuple(stop - start for start, stop in live_ranges(deleted, source.rows or 0))
