"""Maintenance through Paimon's own Spark procedures, and the data to check its result.

Source: Paimon's documentation, Spark, Procedures. ``purge_files`` is not used, because it empties the table.
Names come from paths, which may be hostile. So only names that consist of letters, digits, ``_``, ``-`` and spaces are
put into a statement.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.errors import RefusedError, UsageError
from dv_maintenance.files.arrays import strings
from dv_maintenance.tables.capabilities import EngineName, WaitingRows
from dv_maintenance.tables.paimon.layout import Layout
from dv_maintenance.tables.paimon.log.schema import newest_schema, read_schema
from dv_maintenance.tables.paimon.rows.tasks import ADDED, COLUMNS, TAKEN, field_in, only, source_of, stored_source
from dv_maintenance.tables.work import ScanTask

if TYPE_CHECKING:
    from dv_maintenance.tables.model import Change
    from dv_maintenance.tables.paimon.snapshot import PaimonSnapshot
    from dv_maintenance.tables.work import SourceFile

EXTENSION: Final = "org.apache.paimon.spark.extensions.PaimonSparkSessionExtensions"
ADVICE: Final = (
    "put Paimon's connector for this Spark on its class path (such as org.apache.paimon:paimon-spark-4.0_2.13), "
    f"{EXTENSION} into spark.sql.extensions, and set spark.sql.catalog.paimon=org.apache.paimon.spark.SparkCatalog and "
    "spark.sql.catalog.paimon.warehouse"
)
_PREFIX: Final = "spark.sql.catalog."
_CATALOGS: Final = frozenset({"org.apache.paimon.spark.SparkCatalog", "org.apache.paimon.spark.SparkGenericCatalog"})
_NAME: Final = re.compile(r"[\w\- ]{1,200}")
_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TABLE: Final = re.compile(r"(.*)/([^/]+)\.db/([^/]+)")
_SCHEMES: Final = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}

# Without arguments, both procedures of vacuum use the table's options. Orphans are kept for one day.
_STATEMENTS: Final = {
    "optimize": ("CALL {catalog}.sys.compact(table => '{table}', compact_strategy => 'minor')",),
    "purge": ("CALL {catalog}.sys.compact(table => '{table}', compact_strategy => 'full')",),
    "vacuum": (
        "CALL {catalog}.sys.expire_snapshots(table => '{table}')",
        "CALL {catalog}.sys.remove_orphan_files(table => '{table}')",
    ),
}
# A compaction of a data-evolution table keeps its deletion vectors.
_MATERIALIZE: Final = ("CALL {catalog}.sys.materialize_deletion_vectors(table => '{table}')",)
# With one of these options, an added row may legitimately be missing.
_MAY_GO: Final = ("sequence.field", "record-level.expire-time", "ignore-update-before", "rowkind.field")


# -- names --------------------------------------------------------------------------------------------------------


def name_of(layout: Layout, settings: Mapping[str, str], wanted: str | None) -> EngineName:
    """The table's name in a session with these ``settings``.

    wanted : the catalog, or ``catalog.database.table``; by default the catalog whose warehouse holds the table.

    Raises
    ------
    RefusedError : there is no such catalog, or there are several; the table's path is not that of a warehouse; it is a
        branch; or a name is not safe in SQL.
    UsageError : ``wanted`` does not have one of these forms.
    """
    if layout.branch is not None:
        raise RefusedError("this tool does not maintain branches through Spark's procedures", table=layout.uri)
    catalogs = {
        key.removeprefix(_PREFIX): settings.get(f"{key}.warehouse", "")
        for key, value in settings.items()
        if key.startswith(_PREFIX) and value in _CATALOGS
    }
    parts = wanted.split(".") if wanted else []
    if len(parts) not in {0, 1, 3}:
        raise UsageError(f"{wanted!r} is neither a catalog nor catalog.database.table", table=layout.uri)
    match = _TABLE.fullmatch(layout.storage.uri)
    if match is None and len(parts) != 3:
        raise RefusedError(
            "its path is not WAREHOUSE/DATABASE.db/TABLE, so its name in the catalog is unknown",
            table=layout.uri,
            next_step="name it: catalog.database.table",
        )
    if parts:
        catalog = parts[0]
        if catalog not in catalogs:
            raise RefusedError(
                f"the Spark session has no Paimon catalog named {catalog!r}",
                table=layout.uri,
                next_step=f"choose from {', '.join(sorted(catalogs))}" if catalogs else ADVICE,
            )
    else:
        assert match is not None
        found = [name for name, warehouse in catalogs.items() if _place(warehouse) == _place(match[1])]
        if len(found) != 1:
            what = "no Paimon catalog with that warehouse" if not found else f"several: {', '.join(sorted(found))}"
            raise RefusedError(
                f"the table is in the warehouse {match[1]}, but the Spark session has {what}",
                table=layout.uri,
                next_step=f"name the catalog; or {ADVICE}" if not found else "name the catalog",
            )
        catalog = found[0]
    database, table = parts[1:] if len(parts) == 3 else (unquote(match[2]), unquote(match[3])) if match else ("", "")
    for name in (catalog, database, table):
        if not _NAME.fullmatch(name):
            raise RefusedError(
                f"the name {name[:100]!r} is not allowed in the SQL that this tool runs", table=layout.uri
            )
    return EngineName(_quoted(catalog), _quoted(database), _quoted(table))


def _quoted(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else f"`{name}`"


def _place(uri: str) -> str:
    """The normalized spelling of a folder."""
    scheme, separator, rest = unquote(uri.strip()).partition(":/")
    if not separator:
        scheme, rest = "file", scheme
    rest = rest.strip("/")
    return f"{_SCHEMES.get(scheme, scheme)}:/{rest}"


def statements(job: str, name: EngineName, snapshot: PaimonSnapshot) -> tuple[str, ...]:
    """The statements of a job. Raises UsageError if the job is unknown."""
    if job not in _STATEMENTS:
        raise UsageError(f"unknown job {job!r}", next_step=f"use one of {', '.join(_STATEMENTS)}")
    table = f"{name.database}.{name.table}"
    found = _MATERIALIZE if snapshot.options.data_evolution and job == "purge" else _STATEMENTS[job]
    return tuple(each.format(catalog=name.catalog, table=table) for each in found)


def probe(name: EngineName, snapshot: PaimonSnapshot) -> tuple[str, tuple[Any, ...]]:
    """A query, and the only row that it returns if the session's table is this one.

    Raises
    ------
    RefusedError : the table has no snapshot yet.
    """
    if snapshot.file is None:
        raise RefusedError("it has no snapshot yet: there is nothing to maintain", table=snapshot.table, version=0)
    listed = f"{name.catalog}.{name.database}.`{name.table.strip('`')}$snapshots`"
    # All names have passed _NAME.
    query = f"SELECT commit_user, commit_identifier FROM {listed} WHERE snapshot_id = {snapshot.version}"  # noqa: S608
    return query, (snapshot.file.commit_user, snapshot.file.commit_identifier)


def rows_query(name: EngineName, snapshot: PaimonSnapshot) -> str:
    """A query that returns one row, a checksum of all rows of a snapshot as the engine reads them, in any order."""
    columns = ", ".join(f"`{column.replace('`', '``')}`" for column in snapshot.schema.names)
    row = f"xxhash64(to_json(struct({columns})))"
    table = f"{name.catalog}.{name.database}.{name.table}"
    # All names have passed _NAME, and columns are quoted.
    sums = f"count(*), sum(CAST({row} AS DECIMAL(38, 0))), bit_xor({row})"
    return f"SELECT {sums} FROM {table} VERSION AS OF {snapshot.version}"  # noqa: S608


# -- checks -------------------------------------------------------------------------------------------------------


def only_moves_rows(layout: Layout, change: Change) -> bool:
    """Whether a snapshot only moves rows. A compaction of a primary-key table may also make waiting rows visible."""
    return change.operation == "COMPACT" and (not change.data_changed or bool(newest_schema(layout).primary_keys))


def waiting(layout: Layout, old: PaimonSnapshot, new: PaimonSnapshot) -> WaitingRows | None:
    """Rows that no reader saw at ``old``. After a compaction, their keys may have other rows at ``new``. ``None`` if
    there are none.

    Raises
    ------
    RefusedError : a file has an unsupported format.
    """
    if not old.options.hides_level_0 or not old.hidden.num_rows:
        return None
    keys = old.table_schema.primary_keys
    still = pc.is_in(old.hidden["path"], value_set=strings(new.hidden["path"].to_pylist()))
    settled = old.hidden.filter(pc.invert(still))
    plain = old.options.values.get("merge-engine", "").strip().lower() not in {"aggregation", "partial-update"}
    certain = plain and not any(old.options.values.get(option) for option in _MAY_GO)
    return WaitingRows(
        keys,
        tuple(_key_tasks(layout, old, old.hidden, keys, {})),
        tuple(_key_tasks(layout, old, settled, keys, only(ADDED))) if certain else (),
        tuple(_key_tasks(layout, old, old.hidden, keys, only(TAKEN))) if certain else (),
    )


def _key_tasks(
    layout: Layout, snapshot: PaimonSnapshot, files: pa.Table, keys: tuple[str, ...], details: Mapping[str, Any]
) -> Iterator[ScanTask]:
    by_name = {each.name: each for each in snapshot.table_schema.fields}
    for row in files.select(COLUMNS).to_pylist():
        stored = snapshot.table_schema
        if stored.id != row["schema_id"]:
            stored = read_schema(layout, row["schema_id"])
        shape = pa.schema([field_in(by_name[key], stored) for key in keys])
        yield ScanTask((replace(source_of(layout, snapshot, row), details=details),), shape)


def stored_sources(layout: Layout, snapshot: PaimonSnapshot) -> Iterator[SourceFile]:
    """See ``FsckTable``."""
    return sources(layout, [snapshot])


def sources(layout: Layout, snapshots: Iterable[PaimonSnapshot]) -> Iterator[SourceFile]:
    """Every live file of the snapshots, once, even if no reader opens it."""
    seen = set()
    for snapshot in snapshots:
        # If several files together hold the same rows, the size in ``files`` is their total.
        made_up = pc.is_in(snapshot.files["path"], value_set=snapshot.parts["path"].combine_chunks())
        for files in (snapshot.files.filter(pc.invert(made_up)), snapshot.parts, snapshot.hidden):
            for batch in files.select(COLUMNS).to_batches(max_chunksize=65_536):
                for row in batch.to_pylist():
                    source = stored_source(layout, snapshot, row)
                    if source.key not in seen:
                        seen.add(source.key)
                        yield source
