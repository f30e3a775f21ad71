"""Real Delta tables with real deletion vectors (DVs), made without a JVM: for tests, the demo and benchmarks.

>>> import tempfile, pyarrow as pa, pyarrow.compute as pc
>>> builder = DeltaBuilder(tempfile.mkdtemp() + "/orders").create(pa.schema([("id", pa.int64())]))
>>> builder.append(pa.table({"id": range(1000)}), files=2)
1
>>> builder.delete(lambda rows: pc.equal(pc.bit_wise_and(rows["id"], 3), 0))
2
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, Literal
from uuid import uuid4

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dv_maintenance.dv import DeletionVector
from dv_maintenance.dv.delta import inline, pack
from dv_maintenance.engine.parquet.special_floats import SpecialFloats
from dv_maintenance.engine.scan import scan
from dv_maintenance.engine.stats import StatsCollector
from dv_maintenance.errors import UsageError
from dv_maintenance.storage import Storage
from dv_maintenance.tables.delta.commit.publish import commit_body, commit_times, operation_info
from dv_maintenance.tables.delta.load import load_snapshot
from dv_maintenance.tables.delta.log.actions import Action, Metadata, Protocol
from dv_maintenance.tables.delta.log.bulk import dv_id
from dv_maintenance.tables.delta.log.checkpoint_writer import write_checkpoint
from dv_maintenance.tables.delta.log.replay import full_state
from dv_maintenance.tables.delta.log.segment import commit_path
from dv_maintenance.tables.delta.rows.schema import partition_physical_names, physical_schema
from dv_maintenance.tables.delta.rows.schema_string import schema_string
from dv_maintenance.tables.delta.rows.stats import stats_columns, stats_json
from dv_maintenance.tables.delta.rows.tasks import log_path, output_folder, scan_tasks
from dv_maintenance.tables.delta.snapshot import DeltaSnapshot
from dv_maintenance.tables.dv_codecs import load
from dv_maintenance.tables.model import FileKey, partition_name
from dv_maintenance.tables.work import OutputFile, RewriteBin, SourceFile
from dv_maintenance.units import epoch_millis

DvStyle = Literal["file", "inline", "absolute"]
# Which rows to delete: a function of each batch, or physical positions by the file's path in the log.
Where = Callable[[pa.RecordBatch], pa.BooleanArray] | Mapping[str, Iterable[int]]

_READER_WRITER: Final = frozenset(
    {
        "catalogManaged",
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "typeWidening",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
# Table properties that need a feature to take effect.
_FEATURE_OF: Final = {
    ("delta.enableDeletionVectors", "true"): "deletionVectors",
    ("delta.enableInCommitTimestamps", "true"): "inCommitTimestamp",
    ("delta.enableChangeDataFeed", "true"): "changeDataFeed",
    ("delta.columnMapping.mode", "name"): "columnMapping",
    ("delta.columnMapping.mode", "id"): "columnMapping",
    ("delta.checkpointPolicy", "v2"): "v2Checkpoint",
}


class DeltaBuilder:
    """The only writer of a table; each call commits one version. Not safe while other writers are active, unlike
    ``commit``.

    clock : returns the time in epoch milliseconds, for commits and, on local disk, for the modification times of all
        files; a test of retention sets it back.
    """

    def __init__(
        self,
        place: str,
        *,
        storage_options: Mapping[str, str] | None = None,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self.storage = Storage(place, storage_options)
        self.clock = clock

    # -- operations ------------------------------------------------------------------------------------------------

    def create(
        self,
        schema: pa.Schema,
        *,
        partition_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        features: Iterable[str] = (),
    ) -> DeltaBuilder:
        """Version 0. DVs are enabled unless ``properties`` say otherwise; ``delta.columnMapping.mode`` maps columns.
        ``features``: names besides those that properties and types bring along.
        """
        configuration = {"delta.enableDeletionVectors": "true", **(properties or {})}
        mapped = configuration.get("delta.columnMapping.mode", "none") != "none"
        if mapped and any(pa.types.is_nested(field.type) for field in schema):
            raise UsageError("the builder maps columns of flat tables only", next_step="make nested tables with Spark")
        text, largest_id = schema_string(schema, mapped=mapped)
        if mapped:
            configuration["delta.columnMapping.maxColumnId"] = str(largest_id)
        names = {*features, *(name for pair, name in _FEATURE_OF.items() if pair in configuration.items())}
        if '"timestamp_ntz"' in text:
            names.add("timestampNtz")
        protocol = Protocol(3, 7, frozenset(names & _READER_WRITER), frozenset(names))
        metadata = Metadata(
            id=str(uuid4()),
            schema_string=text,
            partition_columns=tuple(partition_by),
            configuration=configuration,
            created_time=self._now(),
        )
        info = operation_info(None, "CREATE TABLE", {"partitionBy": list(partition_by)}, {}, blind=True)
        times = commit_times(protocol, metadata, None, self._now())
        self._write(0, {**times, **info}, [{"protocol": protocol.to_json()}, {"metaData": metadata.to_json()}])
        return self

    def append(
        self,
        rows: pa.Table | Iterable[pa.Table],
        *,
        files: int = 1,
        rows_per_row_group: int | None = None,
        statistics: bool = True,
    ) -> int:
        """Append rows, each table of ``rows`` as ``files`` files per partition; a generator of tables keeps only one in
        memory. ``statistics=False`` leaves out even the row count. Returns the version.
        """
        snapshot = load_snapshot(self.storage)
        adds: list[Action] = []
        for table in [rows] if isinstance(rows, pa.Table) else rows:
            for values, part in _partitions(table, snapshot):
                size = -(-part.num_rows // files)
                for start in range(0, part.num_rows, size):
                    piece = part.slice(start, size)
                    adds.append(self._add(snapshot, values, piece, rows_per_row_group, statistics))
        metrics = {"numFiles": len(adds), "numOutputBytes": sum(add["add"]["size"] for add in adds)}
        info = operation_info(snapshot, "WRITE", {"mode": "Append", "partitionBy": []}, metrics, blind=True)
        return self._commit(snapshot, info, adds)

    def delete(
        self,
        where: Where,
        *,
        style: DvStyle = "file",
        target_size: int = 2 * 1024 * 1024,
        prefix: str = "",
        keep_empty: bool = False,
    ) -> int:
        """Delete rows with DVs, as delta-spark's DELETE does. Returns the version.

        where : a function of each file's physical rows in batches, with logical names and partition columns; returns
            ``True`` for the rows to delete. Or positions by path.
        style : where DVs are stored: in files below the table's root, inline, or in files with absolute paths.
        target_size : DVs share files of up to this many bytes (1: each has its own file).
        prefix : folder of the DV files.
        keep_empty : keep a file without live rows, with a DV that names every row, instead of removing it.
        """
        snapshot = load_snapshot(self.storage)
        adds = {FileKey(add["path"], dv_id(add.get("deletionVector"))): add for add in _adds(self.storage, snapshot)}
        now = self._now()
        actions: list[Action] = []
        changed: list[tuple[dict[str, Any], DeletionVector]] = []
        metrics = dict.fromkeys(
            ("numDeletedRows", "numRemovedFiles", "numDeletionVectorsRemoved", "numDeletionVectorsUpdated"), 0
        )
        for source, before, deleted, rows in self._deletions(snapshot, where):
            after = before.union(deleted)
            if after.cardinality == before.cardinality:
                continue
            add = adds[source.key]
            actions.append({"remove": _remove(add, now)})
            metrics["numDeletedRows"] += after.cardinality - before.cardinality
            metrics["numDeletionVectorsRemoved"] += bool(before)
            if after.cardinality == rows and not keep_empty:
                metrics["numRemovedFiles"] += 1
            else:
                metrics["numDeletionVectorsUpdated"] += bool(before)
                changed.append((add, after))
        descriptors = self._store([dv for _, dv in changed], style, target_size, prefix)
        for (add, _), descriptor in zip(changed, descriptors, strict=True):
            stats = {**orjson.loads(add["stats"]), "tightBounds": False} if add.get("stats") else None
            actions.append(
                {
                    "add": _present(
                        {**add, "deletionVector": descriptor, "stats": stats and orjson.dumps(stats).decode()}
                    )
                }
            )
        metrics |= {"numDeletionVectorsAdded": len(changed), "numAddedFiles": 0, "numCopiedRows": 0}
        info = operation_info(snapshot, "DELETE", {"predicate": '["(dv_maintenance.testing)"]'}, metrics, blind=False)
        return self._commit(snapshot, info, actions)

    def checkpoint(self) -> int:
        """Write a checkpoint of the newest version, which is returned."""
        snapshot = load_snapshot(self.storage)
        write_checkpoint(self.storage, snapshot, now=self._now())
        return snapshot.version

    def commit(self, actions: Sequence[Action], *, operation: str = "TEST") -> int:
        """Commit any actions, right or wrong, as the next version."""
        snapshot = load_snapshot(self.storage)
        return self._commit(snapshot, operation_info(snapshot, operation, {}, {}, blind=False), actions)

    # -- files -----------------------------------------------------------------------------------------------------

    def _add(
        self,
        snapshot: DeltaSnapshot,
        values: dict[str, str | None],
        rows: pa.Table,
        rows_per_row_group: int | None,
        statistics: bool,
    ) -> Action:
        """Write one data file. ``values``: partition values by logical name."""
        metadata = snapshot.metadata
        folder = output_folder(snapshot, RewriteBin("append", partition_name(values), ()))
        path = f"{folder}/part-{uuid4()}.parquet".lstrip("/")
        schema = physical_schema(metadata)
        columns = [name for name in rows.column_names if name not in values]
        data = rows.select(columns).rename_columns(schema.names).cast(schema)
        stats, odd = StatsCollector(schema, stats_columns(metadata)), SpecialFloats(schema)
        for batch in data.to_batches():
            stats.add(batch)
            odd.add(batch)
        with self.storage.open_output(path) as sink:
            pq.write_table(data, sink, row_group_size=rows_per_row_group, store_schema=False)
        with self.storage.open_input(path) as file:
            footer = pq.read_metadata(file)
        self._date(path)
        uri, size = self.storage.uri_of(path), self.storage.head(path).size
        output = OutputFile(uri, size, rows.num_rows, self._now(), stats.fold(footer, odd.nan, odd.negative_zero))
        physical = partition_physical_names(metadata)
        add = {
            "path": log_path(self.storage, uri),
            "partitionValues": {physical[name]: value for name, value in values.items()},
            "size": size,
            "modificationTime": output.modified,
            "dataChange": True,
        }
        return {"add": {**add, "stats": stats_json(output, metadata)} if statistics else add}

    def _deletions(
        self, snapshot: DeltaSnapshot, where: Where
    ) -> Iterator[tuple[SourceFile, DeletionVector, DeletionVector, int]]:
        """For each file that ``where`` selects from: its DV, the selected rows, and its number of rows."""
        for task in scan_tasks(self.storage, snapshot):
            (source,) = task.sources
            if not callable(where) and source.key.path not in where:
                continue
            with self.storage.open_input(self.storage.path_of_uri(source.uri)) as file:
                rows = pq.read_metadata(file).num_rows
            before = DeletionVector.empty() if source.dv is None else load(source.dv, self.storage.get_range)
            if callable(where):
                physical = replace(task, sources=(replace(source, dv=None),))
                masks = [pc.fill_null(where(batch), False) for batch in scan(physical, self.storage.options)]
                deleted = DeletionVector.from_mask(pa.concat_arrays(masks))
            else:
                deleted = DeletionVector.from_positions(where[source.key.path])
            yield source, before, deleted, rows

    def _store(
        self, dvs: Sequence[DeletionVector], style: DvStyle, target_size: int, prefix: str
    ) -> list[dict[str, Any]]:
        """Descriptors of the DVs, in the log's form, once their files are written."""
        if style == "inline":
            return [inline(dv).to_json() for dv in dvs]
        descriptors = []
        for packed in pack(dvs, target_size=target_size, prefix=prefix):
            self.storage.put(packed.path, packed.data)
            self._date(packed.path)
            for descriptor in packed.descriptors:
                if style == "absolute":
                    descriptor = replace(descriptor, storage_type="p", path_or_inline=self.storage.uri_of(packed.path))
                descriptors.append(descriptor.to_json())
        return descriptors

    # -- log -------------------------------------------------------------------------------------------------------

    def _commit(self, snapshot: DeltaSnapshot, info: Mapping[str, Any], actions: Sequence[Action]) -> int:
        times = commit_times(snapshot.protocol, snapshot.metadata, snapshot.in_commit_timestamp, self._now())
        return self._write(snapshot.version + 1, {**times, **info}, actions)

    def _write(self, version: int, info: Mapping[str, Any], actions: Sequence[Action]) -> int:
        path = commit_path(version)
        named = {**info, "engineInfo": "delta-builder", "txnId": str(uuid4())}
        self.storage.create(path, commit_body(named, actions))
        self._date(path)
        return version

    def _now(self) -> int:
        return epoch_millis() if self.clock is None else self.clock()

    def _date(self, path: str) -> None:
        if self.clock is not None and self.storage.is_local:
            os.utime(self.storage.local(path), (self.clock() / 1000, self.clock() / 1000))


def _partitions(rows: pa.Table, snapshot: DeltaSnapshot) -> Iterator[tuple[dict[str, str | None], pa.Table]]:
    """The rows of each partition, after its values as the log spells them."""
    names = list(snapshot.partition_columns)
    if not names:
        yield {}, rows
        return
    for values in rows.select(names).group_by(names).aggregate([]).to_pylist():
        mask = None
        for name, value in values.items():
            column = rows[name]
            same = column.is_null() if value is None else pc.fill_null(pc.equal(column, value), False)
            mask = same if mask is None else pc.and_(mask, same)
        yield {name: _partition_value(value) for name, value in values.items()}, rows.filter(mask)


def _partition_value(value: Any) -> str | None:
    """Protocol: Partition Value Serialization."""
    match value:
        case None:
            return None
        case bool():
            return str(value).lower()
        case datetime():
            return str(value.replace(tzinfo=None)) + ("" if value.tzinfo is None else "Z")
        case bytes():
            return value.decode()
        case _:
            return str(value)


def _adds(storage: Storage, snapshot: DeltaSnapshot) -> Iterator[dict[str, Any]]:
    """The live add actions in the log's own form."""
    for batch in full_state(storage, snapshot).adds.to_batches():
        for row in batch.to_pylist():
            for name in ("partitionValues", "tags"):
                row[name] = None if row[name] is None else dict(row[name])
            row["deletionVector"] = row["deletionVector"] and _present(row["deletionVector"])
            yield {**_present(row), "dataChange": True}


def _remove(add: Mapping[str, Any], now: int) -> dict[str, Any]:
    kept = ("path", "partitionValues", "size", "tags", "deletionVector", "baseRowId", "defaultRowCommitVersion")
    return {
        "deletionTimestamp": now,
        "dataChange": True,
        "extendedFileMetadata": True,
        **{name: add[name] for name in kept if name in add},
    }


def _present(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
