"""Which tables this package may change, and what to use for all other tables."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow.compute as pc

from dv_maintenance.errors import RefusedError
from dv_maintenance.files.arrays import integer
from dv_maintenance.remedies import Remedy, run
from dv_maintenance.tables.paimon.features import check_rows_readable
from dv_maintenance.tables.paimon.log.index_manifest import DELETION_VECTORS
from dv_maintenance.tables.paimon.rows import keyed, lineage, lines
from dv_maintenance.tables.paimon.rows.formats import codec_of, format_of, why_not_written
from dv_maintenance.tables.paimon.rows.tasks import check_opened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dv_maintenance.tables.paimon.layout import Layout
    from dv_maintenance.tables.paimon.snapshot import PaimonSnapshot

_UNAWARE: Final = -1
# Global indexes that name rows by their ids, which rows keep. Readers ignore ids of rows that are gone.
_BY_ROW_ID: Final = (
    *("btree", "bitmap", "full-text"),
    *("ivf-flat", "ivf-pq", "ivf-sq", "ivf-rq", "diskann", "lumina", "lumina-vector-ann"),
)
# Of primary-key tables. Hashes of the keys of each bucket, which dynamic buckets have: files stay in their buckets. And
# indexes that name data files: readers read other files in full. Not in searches of vectors and texts, which miss their
# rows.
_BY_FILE: Final = ("HASH", "btree", "bitmap")
_COMPACT: Final = "let Paimon do it, in a Spark session with its connector: {}, which also checks the result"
_NEXT: Final = {
    "delete": "use DELETE in a Spark session with Paimon's connector",
    "update": "use UPDATE in a Spark session with Paimon's connector",
    "merge": "use MERGE INTO in a Spark session with Paimon's connector",
    "manifest": "use a reader of Paimon, which applies deletion vectors, or one of Paimon's Iceberg metadata",
}


def check_writable(layout: Layout, snapshot: PaimonSnapshot, operation: str) -> None:
    """Refuse an operation that this package can't do correctly, see ``Table.check_writable``.

    Raises
    ------
    RefusedError : the operation is left to Paimon itself, or the table's rows can't be read. The message has the
        reason.
    """
    reason = _WHOLE.get(operation) or next(_reasons(snapshot, operation), None)
    if reason:
        raise refused(snapshot, operation, reason)
    schema = snapshot.table_schema
    if _moves_rows(snapshot, operation) and not snapshot.options.primary_key:
        if format_of(snapshot) not in lines.KINDS:
            codec_of(snapshot)
    else:
        schema = replace(schema, fields=())  # a condition is checked for its own columns
    if operation == "delete":
        check_opened(snapshot)
    check_rows_readable(schema, snapshot.table, snapshot.version)
    if snapshot.options.primary_key and snapshot.file and (reason := keyed.streaming_compaction(layout, snapshot.file)):
        raise refused(snapshot, operation, reason)


def refused(snapshot: PaimonSnapshot, operation: str, reason: str = "") -> RefusedError:
    """The refusal, with the reason and the alternative."""
    return RefusedError(
        f"no {operation} of this table: {reason or _WHOLE[operation]}",
        at=snapshot,
        next_step=_ONLY.get(reason)
        or _NEXT.get(operation)
        or Remedy(_COMPACT, (run("engine-sql", f"{snapshot.table} purge"),)),
    )


_UNTRACKED: Final = "some of its files are older than row tracking, and have no row ids (row-tracking.enabled)"
# What helps where nothing else of Paimon does: its compaction of such files fails, too.
_ONLY: Final = {_UNTRACKED: "copy its rows into a new table, which gives all of them row ids"}
_NO_NEW_ROWS: Final = "this tool does not write new rows to Paimon tables"
_WHOLE: Final = {
    "update": _NO_NEW_ROWS,
    "merge": _NO_NEW_ROWS,
    "manifest": "symlink manifests do not make a Paimon table readable without deletion vectors",
}


def _moves_rows(snapshot: PaimonSnapshot, operation: str) -> bool:
    """Whether the operation rewrites files, whatever they hold. With data evolution, see ``row_id_ranges.barred``."""
    return operation == "rewrite" and not snapshot.options.data_evolution


def _reasons(snapshot: PaimonSnapshot, operation: str) -> Iterator[str]:
    options, moves = snapshot.options, _moves_rows(snapshot, operation)
    alone = options.primary_key and operation == "rewrite"
    if alone:
        yield from keyed.why_not(snapshot)
    elif options.primary_key:
        yield "only Paimon can merge the rows of a primary-key table"
    if moves and lineage.tracks(options) and lineage.lacks_ids(snapshot):
        yield _UNTRACKED
    bucket = snapshot.properties.get("bucket", "").strip()
    if not alone and (bucket not in {"", str(_UNAWARE)} or _has_buckets(snapshot)):
        yield "its rows are in buckets, where Paimon compares no deletion vectors: a concurrent DELETE would be lost"
    if operation == "rewrite" and (strategy := options.writes_outside):
        yield (
            f"its new data files belong outside the table (data-file.external-paths.strategy={strategy}), where this "
            "tool writes nothing"
        )
    right = _BY_FILE if alone else _BY_ROW_ID if not moves or lineage.tracks(options) else ()
    kinds = {file.kind for file in snapshot.index.files} - {DELETION_VECTORS, *right}
    named = ", ".join(sorted(kinds))
    if alone and kinds and kinds <= {*_BY_ROW_ID}:
        yield f"its indexes name data files, and searches would miss rows of new files ({named})"
    elif kinds:
        yield f"whether searches by its indexes stay right is unknown ({named})"
    if moves and not alone and format_of(snapshot) not in lines.KINDS:
        yield from why_not_written(snapshot)
    if operation == "delete" and options.fallback_branch:
        yield "rows of another branch would come back where a partition loses its last file (scan.fallback-branch)"
    if operation == "delete" and not options.deletion_vectors:
        yield "deletion vectors are not enabled (deletion-vectors.enabled)"


def _has_buckets(snapshot: PaimonSnapshot) -> bool:
    files = snapshot.files
    if not len(files):
        return False
    total = pc.fill_null(files["total_buckets"], integer(_UNAWARE))
    spread = pc.or_(pc.not_equal(files["bucket"], integer(0)), pc.not_equal(total, integer(_UNAWARE)))
    return bool(pc.any(spread).as_py())
