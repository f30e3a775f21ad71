"""Which tables this package may change, and what to use for all others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from dv_maintenance.errors import RefusedError
from dv_maintenance.tables.iceberg.log.pointer import hadoop_number
from dv_maintenance.tables.iceberg.rows.formats import (
    DELETES_FORMAT,
    FORMAT,
    WRITTEN,
    delete_format_of,
    why_not_written,
)
from dv_maintenance.tables.iceberg.rows.transforms import NewPartitions

if TYPE_CHECKING:
    from dv_maintenance.tables.iceberg.layout import Layout
    from dv_maintenance.tables.iceberg.snapshot import IcebergSnapshot

_CHANGES: Final = frozenset({"delete", "update", "merge"})
_GC: Final = "gc.enabled"
_NEXT: Final = {
    "rewrite": "let its engine do it, such as CALL system.rewrite_data_files in Spark",
    "vacuum": "let its engine do it, such as CALL system.expire_snapshots in Spark",
    "delete": "use DELETE in its engine",
    "update": "use UPDATE in its engine",
    "merge": "use MERGE INTO in its engine",
    "manifest": "use a reader of Iceberg, which applies deletes",
}
_WHOLE: Final = {
    "manifest": "symlink manifests do not make an Iceberg table readable without its deletes",
}


def check_writable(layout: Layout, snapshot: IcebergSnapshot, operation: str) -> None:
    """Refuse an operation that this package can't do correctly, see ``Table.check_writable``.

    Raises
    ------
    RefusedError : with the reason, and what to use instead.
    """
    if layout.is_copy(snapshot.metadata):
        place = snapshot.metadata.location
        raise RefusedError(
            f"no {operation} of this table: its metadata says that it is at {place}, where its paths lead; of the "
            "files here, which look like a copy, no version needs any",
            at=snapshot,
            next_step=f"open it at {place}; in a copy, correct the paths first, with Spark's CALL "
            "system.rewrite_table_path",
        )
    reason = _WHOLE.get(operation) or next(_reasons(layout, snapshot, operation), None)
    if reason:
        raise refused(snapshot, operation, reason)


def refused(snapshot: IcebergSnapshot, operation: str, reason: str = "") -> RefusedError:
    """The refusal, with the reason and the alternative."""
    return RefusedError(
        f"no {operation} of this table: {reason or _WHOLE[operation]}",
        at=snapshot,
        next_step=_NEXT.get(operation, "use the table's own engine"),
    )


def _reasons(layout: Layout, snapshot: IcebergSnapshot, operation: str) -> Iterator[str]:
    metadata = snapshot.metadata
    if layout.file is not None:
        yield "it was named by a metadata file, not by its folder or catalog, which say what is newest"
    elif layout.catalog is not None:
        if why := layout.catalog.refusal():
            yield why
    elif hadoop_number(metadata.path) is None:
        yield "only its catalog can commit; name the table by its catalog (iceberg:CATALOG.NAMESPACE.TABLE)"
    if operation in _CHANGES and (why := no_deletes(snapshot)):
        yield why
    if operation == "vacuum" and metadata.properties.get(_GC, "true").strip().lower() == "false":
        yield f"its property {_GC} is false: other tables may need its files"
    if operation in {"update", "merge"} and (transform := NewPartitions.of(metadata).unknown()):
        yield f"its partition specification has the transform {transform}, which this release does not know"
    if operation in {"rewrite", "update", "merge"}:
        yield from why_not_written(snapshot)


def no_deletes(snapshot: IcebergSnapshot) -> str:
    """Why rows of the table can't be deleted by position; "" if they can."""
    version = snapshot.metadata.format_version
    if version < 2:
        return "format version 1 has no deletes; set its format-version to 2 or 3, which changes metadata only"
    wanted = delete_format_of(snapshot)
    if version < 3 and wanted not in WRITTEN:
        name = DELETES_FORMAT if DELETES_FORMAT in snapshot.properties else FORMAT
        return f"delete files of the table must be {wanted}, but this tool writes only Parquet, ORC and Avro ({name})"
    return ""
