"""Read a checkpoint: classic, multi-part, or v2 with its sidecars (protocol: Checkpoints).

Whatever a checkpoint's file is called, it may hold any action, sidecar references included, so all kinds are read in
one way: bulk actions as Arrow tables of the requested columns, all other actions as dicts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.errors import DamagedTableError, RefusedError, StorageError
from dv_maintenance.files.parquet_footer import open_parquet_file
from dv_maintenance.resources import raise_if_refused
from dv_maintenance.storage import Storage
from dv_maintenance.storage.failures import storage_failure
from dv_maintenance.tables.delta.log.actions import Action
from dv_maintenance.tables.delta.log.bulk import ADD_TYPES, DV_TYPE, REMOVE_TYPES, bulk_table
from dv_maintenance.tables.delta.log.columns import num_records
from dv_maintenance.tables.delta.log.segment import LOG, read_actions

if TYPE_CHECKING:
    import pyarrow.parquet as pq

SIDECARS: Final = f"{LOG}/_sidecars"
# Small enough that data decoded but not kept, such as statistics, takes little memory.
_BATCH_ROWS: Final = 1 << 14
_THREADS: Final = 4
_TYPES: Final = {"add": ADD_TYPES, "remove": REMOVE_TYPES}

# The small actions, each with a field that it always has. Where Parquet statistics report that field as null
# throughout, the row group holds no such action.
_SMALL: Final = {
    "protocol": "minReaderVersion",
    "metaData": "id",
    "txn": "appId",
    "domainMetadata": "domain",
    "sidecar": "path",
}


@dataclass(slots=True)
class Checkpoint:
    """The content of a checkpoint.

    actions : all actions other than adds and removes.
    bulk : by kind (``add``, ``remove``), a table per file, without columns that are null throughout.
    adds : number of adds; ``None`` if a footer does not say.
    """

    actions: list[Action] = field(default_factory=list)
    bulk: dict[str, list[pa.Table]] = field(default_factory=lambda: {"add": [], "remove": []})
    adds: int | None = 0


def read_checkpoint(storage: Storage, files: Iterable[str], columns: Mapping[str, Sequence[str]]) -> Checkpoint:
    """Read the files of one complete checkpoint, then the sidecars they name.

    ``columns``: fields wanted per bulk action (names of ``bulk.ADD_TYPES``, ``bulk.REMOVE_TYPES``). A bulk action
    without an entry is not read.

    Raises
    ------
    DamagedTableError : names the file.
    """
    result = Checkpoint()
    _read_all(storage, list(files), columns, result)
    sidecars = [action["sidecar"] for action in result.actions if "sidecar" in action]
    _read_all(storage, [_sidecar_path(storage, sidecar) for sidecar in sidecars], columns, result)
    result.actions = [action for action in result.actions if "sidecar" not in action]
    return result


def _read_all(storage: Storage, paths: list[str], columns: Mapping[str, Sequence[str]], result: Checkpoint) -> None:
    def read(path: str) -> Checkpoint:
        return (_read_json if path.endswith(".json") else _read_parquet)(storage, path, columns)

    with ThreadPoolExecutor(_THREADS) as pool:
        parts = list(pool.map(read, paths)) if len(paths) > 1 else [read(path) for path in paths]
    for part in parts:
        result.actions += part.actions
        result.adds = None if result.adds is None or part.adds is None else result.adds + part.adds
        for kind, tables in part.bulk.items():
            result.bulk[kind] += tables


def _sidecar_path(storage: Storage, sidecar: object) -> str:
    path = sidecar.get("path") if isinstance(sidecar, dict) else None
    if not isinstance(path, str) or not path:
        raise DamagedTableError("the checkpoint names a sidecar without a path", table=storage.uri)
    # Sidecars live in one folder whatever the reference looks like, so only the name counts.
    return f"{SIDECARS}/{unquote(path).rsplit('/', 1)[-1]}"


def _read_json(storage: Storage, path: str, columns: Mapping[str, Sequence[str]]) -> Checkpoint:
    result = Checkpoint()
    try:
        actions = read_actions(storage, path)
    except FileNotFoundError:
        raise _missing(storage, path) from None
    result.adds = sum("add" in action for action in actions)
    bodies: dict[str, list[Any]] = {kind: [] for kind in columns}
    for action in actions:
        ((kind, body),) = action.items()
        if kind in bodies:
            bodies[kind].append(body)
        elif kind in _SMALL:
            result.actions.append(action)
    for kind, found in bodies.items():
        if found:
            where = [path] * len(found)
            result.bulk[kind].append(bulk_table(kind, found, where, columns[kind], table=storage.uri))
    return result


def _read_parquet(storage: Storage, path: str, columns: Mapping[str, Sequence[str]]) -> Checkpoint:
    result = Checkpoint()
    try:
        with storage.open_input(path) as source, open_parquet_file(source, pre_buffer=not storage.is_local) as file:
            result.actions = _small_actions(file)
            result.adds = _number_of_adds(file)
            for kind, names in columns.items():
                if names and kind in file.schema_arrow.names:
                    result.bulk[kind].append(_bulk(file, kind, names))
    except FileNotFoundError:
        raise _missing(storage, path) from None
    except (StorageError, DamagedTableError):
        raise
    except RefusedError as error:
        raise RefusedError(
            f"checkpoint file {path}: {error.message}", table=storage.uri, next_step=error.next_step
        ) from error
    except (pa.ArrowException, MemoryError, UnicodeDecodeError, OSError, _UnreadableError) as error:
        raise_if_refused(error, path)
        if isinstance(error, OSError) and error.errno is not None:
            # Disk errors of the operating system have a number; Arrow's errors about malformed bytes have none.
            raise storage_failure(path, error, table=storage.uri) from error
        raise DamagedTableError(
            f"checkpoint file {path} cannot be read: {_first_line(error)}",
            table=storage.uri,
            next_step="restore the file from a backup, or delete it if the commits before it are all still there",
        ) from error
    return result


class _UnreadableError(Exception):
    """The file is valid Parquet, but not a checkpoint that we can read."""


def _missing(storage: Storage, path: str) -> DamagedTableError:
    return DamagedTableError(
        f"checkpoint file {path} is missing", table=storage.uri, next_step="restore the file from a backup"
    )


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


# -- Parquet -----------------------------------------------------------------------------------------------------


class _Leaves:
    """Null counts of a file's leaf columns, from its footer."""

    def __init__(self, file: pq.ParquetFile) -> None:
        self._metadata = file.metadata
        self._index: dict[str, int] = {file.schema.column(at).path: at for at in range(len(file.schema))}
        self._groups = range(file.metadata.num_row_groups)

    def under(self, prefix: str) -> list[str]:
        return [path for path in self._index if path == prefix or path.startswith(prefix + ".")]

    def nulls(self, path: str, groups: Iterable[int] | None = None) -> int | None:
        """``None`` if the footer does not say."""
        total = 0
        for group in self._groups if groups is None else groups:
            statistics = self._metadata.row_group(group).column(self._index[path]).statistics
            if statistics is None or not statistics.has_null_count:
                return None
            total += statistics.null_count
        return total

    def all_null(self, prefix: str) -> bool:
        """Whether a column, nested or not, is known to be null in every row."""
        rows = self._metadata.num_rows
        return all(self.nulls(path) == rows for path in self.under(prefix))

    def groups_with(self, path: str) -> list[int]:
        """Row groups where a leaf may have a value."""
        rows = [self._metadata.row_group(group).num_rows for group in self._groups]
        return [group for group in self._groups if self.nulls(path, [group]) != rows[group]]


def _small_actions(file: pq.ParquetFile) -> list[Action]:
    leaves, actions = _Leaves(file), []
    for kind, required in _SMALL.items():
        if kind not in file.schema_arrow.names:
            continue
        if f"{kind}.{required}" not in leaves.under(kind):
            raise _UnreadableError(f"{kind} has no field {required}")
        groups = leaves.groups_with(f"{kind}.{required}")
        if not groups:
            continue
        for batch in file.iter_batches(_BATCH_ROWS, row_groups=groups, columns=leaves.under(kind)):
            column = batch.column(0)
            actions += [{kind: _plain(body, column.type)} for body in column.drop_null().to_pylist()]
    return actions


def _number_of_adds(file: pq.ParquetFile) -> int | None:
    leaves = _Leaves(file)
    if "add.path" not in leaves.under("add"):
        return 0
    nulls = leaves.nulls("add.path")
    return None if nulls is None else file.metadata.num_rows - nulls


def _plain(value: Any, type: pa.DataType) -> Any:
    """A Python value as JSON would have it: maps as objects, nulls left out of structs."""
    if value is None:
        return None
    if pa.types.is_struct(type):
        return {
            child.name: _plain(value[child.name], child.type) for child in type if value.get(child.name) is not None
        }
    return dict(value) if pa.types.is_map(type) else value


def _bulk(file: pq.ParquetFile, kind: str, names: Sequence[str]) -> pa.Table:
    """The wanted columns of a file, except those without any value. A row without an action of this kind is null in all
    of them.
    """
    leaves = _Leaves(file)
    present = {child.name for child in file.schema_arrow.field(kind).type}
    if "path" not in present:
        raise _UnreadableError(f"{kind} has no field path")
    wanted = {"path"}
    for name in names:
        wanted.update(_statistics_columns(leaves, kind, present) if name == "numRecords" else [name])
        if name == "stats" and "stats_parsed" in present and not _complete(leaves, kind, "stats"):
            wanted.add("stats_parsed")
    # A column without any value costs as much to decode as any other. The footer identifies such columns: skip them,
    # but not partition values, since the empty maps of an unpartitioned table would be read as nulls.
    read = [
        name
        for name in sorted(wanted)
        if name.split(".")[0] in present and (name == "partitionValues" or not leaves.all_null(f"{kind}.{name}"))
    ]
    selected = [leaf for name in {*read, "path"} for leaf in leaves.under(f"{kind}.{name}")]
    found = {name.split(".")[0] for name in read} | {"path"}
    given = {"numRecords": {"stats", "stats_parsed"}, "stats": {"stats", "stats_parsed"}}
    names = [name for name in names if found & given.get(name, {name})]
    schema = pa.schema([(name, _TYPES[kind][name]) for name in names])
    batches = [
        pa.RecordBatch.from_arrays([_column(batch.column(0), name, schema) for name in names], schema=schema)
        for batch in file.iter_batches(_BATCH_ROWS, columns=selected)
    ]
    return pa.Table.from_batches(batches, schema)


def _complete(leaves: _Leaves, kind: str, name: str) -> bool:
    """Whether every action of this kind surely has the field."""
    nulls = leaves.nulls(f"{kind}.{name}") if leaves.under(f"{kind}.{name}") == [f"{kind}.{name}"] else None
    return nulls is not None and nulls == leaves.nulls(f"{kind}.path")


def _statistics_columns(leaves: _Leaves, kind: str, present: set[str]) -> list[str]:
    """Where to get numRecords from: the struct is far cheaper to read than JSON, but may be missing or have gaps."""
    parsed = "stats_parsed.numRecords"
    if "stats_parsed" not in present or not leaves.under(f"{kind}.{parsed}"):
        return ["stats"]
    if _complete(leaves, kind, parsed):
        return [parsed]
    return [parsed, "stats"] if "stats" in present else [parsed]


def _column(action: pa.StructArray, name: str, schema: pa.Schema) -> pa.Array:
    present = {child.name for child in action.type}
    target = schema.field(name).type
    if name == "numRecords":
        counts = [pc.struct_field(action, ["stats_parsed", "numRecords"])] if "stats_parsed" in present else []
        counts += [num_records(action.field("stats").cast(pa.string()))] if "stats" in present else []
        return pc.coalesce(*(count.cast(target) for count in counts))
    if name == "stats" and "stats_parsed" in present:
        from dv_maintenance.tables.delta.log.parsed_stats import to_json

        json = action.field("stats").cast(target) if "stats" in present else pa.nulls(len(action), target)
        return pc.coalesce(json, to_json(action.field("stats_parsed")))
    # If a writer declares the child as required, only the struct around it shows which rows have no action.
    column = pc.struct_field(action, [name]) if action.null_count else action.field(name)
    if name == "path" and column.null_count != action.null_count:
        raise _UnreadableError("an action has no path")
    if name == "deletionVector":
        return _deletion_vector(column)
    return column if column.type.equals(target) else column.cast(target)


def _deletion_vector(column: pa.StructArray) -> pa.Array:
    """Fields in our order and types; a checkpoint may have more or fewer."""
    present = {child.name for child in column.type}
    children = [
        column.field(child.name).cast(child.type) if child.name in present else pa.nulls(len(column), child.type)
        for child in DV_TYPE
    ]
    return pa.StructArray.from_arrays(children, fields=list(DV_TYPE), mask=column.is_null())
