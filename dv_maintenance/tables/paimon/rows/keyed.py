"""Rewrites of single files of primary-key tables.

Above level 0, a batch reader of a primary-key table with deletion vectors (DVs) reads each file by itself, without the
rows that its DV names. A file without these rows means the same: the live rows keep their order, which is that of their
keys, and their key, sequence number and kind. The file keeps its level, its range of keys and its schema.

Paimon lets only one job at a time compact a bucket, and checks no DVs in primary-key tables. A compaction that planned
with the old file would add its DV for that file, whose rows are then in another one. So a rewrite needs a table whose
writers do not compact (``write-only``), and nothing that waits for a compaction: none can be under way that adds DVs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc

from dv_maintenance.errors import RefusedError
from dv_maintenance.remedies import Remedy, run
from dv_maintenance.tables.paimon.scalars import integer
from dv_maintenance.tables.parquet_schema import stored_schema
from dv_maintenance.units import count

if TYPE_CHECKING:
    import pyarrow as pa

    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.paimon.snapshot import PaimonSnapshot
    from dv_maintenance.tables.work import SourceFile

ONE_FILE: Final = 1 << 62
"""Target size of new files. Each of two would need key bounds of its own."""

_NEW: Final = (
    *("_FILE_NAME", "_FILE_SIZE", "_ROW_COUNT", "_CREATION_TIME", "_FILE_SOURCE"),
    # Statistics of all columns of the file's schema, and no index in the manifest.
    *("_VALUE_STATS", "_VALUE_STATS_COLS", "_EMBEDDED_FILE_INDEX"),
)
_PRODUCERS: Final = frozenset({"", "none", "input", "lookup"})


def why_not(snapshot: PaimonSnapshot) -> Iterator[str]:
    """Why files of a primary-key table can't be rewritten one by one. The commit asks again, of the newest snapshot."""
    options, files = snapshot.options, snapshot.files
    if not options.hides_level_0 or not options.deletion_vectors:
        yield "only Paimon can merge the rows of a primary-key table"
    if not options.flag("write-only"):
        yield (
            "its writers compact it (write-only is not true): rows that one of them replaces meanwhile could come back"
        )
    if snapshot.hidden.num_rows:
        yield f"{count(snapshot.hidden.num_rows, 'file')} of it wait for a compaction, which rewrites others as well"
    producer = snapshot.properties.get("changelog-producer", "").strip().lower()
    if producer not in _PRODUCERS:
        yield f"compactions make its changelog (changelog-producer={producer})"
    with_dv = files.filter(pc.is_valid(files["dv_id"]))
    if pc.any(pc.not_equal(pc.fill_null(with_dv["retractions"], integer(1)), integer(0))).as_py():
        yield "a file with deleted rows has rows that only retract others, or does not say how many"
    if pc.any(pc.greater(with_dv["extra_files"], integer(0))).as_py():
        yield "a file with deleted rows has indexes or changelogs of its own"
    if pc.any(pc.invert(pc.match_substring_regex(with_dv["path"], r"(?i)\.parquet$"))).as_py():
        yield "a file with deleted rows is not a Parquet file"


def as_stored(snapshot: PaimonSnapshot, storage: Storage, source: SourceFile) -> tuple[SourceFile, pa.Schema]:
    """A file to copy with all its columns, keys, sequence numbers and kinds too, and what these are. Reads its footer.

    Raises
    ------
    DamagedTableError, StorageError : the file can't be read.
    """
    if source.format != "parquet":
        raise RefusedError(
            f"{source.key.path} of a primary-key table is not a Parquet file, and can't be copied as it is",
            table=snapshot.table,
            version=snapshot.version,
            next_step=Remedy("let Paimon do it: {}", (run("engine-sql", f"{snapshot.table} purge"),)),
        )
    plain = replace(source, constants={}, details={}, schema=None)
    return plain, stored_schema(storage, source.key.path).remove_metadata()


def rewritten(old: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """What a manifest says of the new file: what it said of the old one, but for name, size, rows and statistics. The
    bounds of keys and of sequence numbers may be wider than necessary.
    """
    return {**old, **{name: values.get(name) for name in _NEW}}
