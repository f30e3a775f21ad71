"""Paimon's own package for Python at work, in an environment of its own: its pyarrow is an older one than ours. Takes a
request as a line of JSON, answers with one.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import pickle
import sys
import uuid
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pypaimon import CatalogFactory, Schema
from pypaimon.globalindex.create_global_index import GlobalIndexBuilder
from pypaimon.globalindex.lumina.lumina_index_meta import LuminaIndexMeta
from pypaimon.globalindex.lumina.lumina_vector_global_index_reader import LUMINA_IDENTIFIERS
from pypaimon.globalindex.result_entry import ResultEntry
from pypaimon.table.row.blob import BlobDescriptor, BlobViewStruct, VideoFrameDescriptor
from pypaimon.table.row.offset_row import OffsetRow


class Worker:
    """Tables are named by their paths, ``WAREHOUSE/DATABASE.db/TABLE``."""

    def table(self, path: str, version: int | None = None) -> Any:
        catalog, name = _named(path)
        found = catalog.get_table(name)
        return found if version is None else found.copy({"scan.snapshot-id": str(version)})

    def create(self, path: str, columns: dict[str, str], partition: list[str], options: dict[str, str]) -> None:
        catalog, name = _named(path)
        catalog.create_database(name.split(".")[0], True)
        schema = pa.schema([(column, _type(kind)) for column, kind in columns.items()])
        told = Schema.from_pyarrow_schema(schema, partition_keys=partition, options=options)
        catalog.create_table(name, told, False)

    def append(self, path: str, columns: dict[str, str], rows: list[dict[str, Any]]) -> None:
        schema = pa.schema([(column, _type(kind)) for column, kind in columns.items()])
        builder = self.table(path).new_batch_write_builder()
        writer = builder.new_write()
        writer.write_arrow(pa.Table.from_pylist([_with_bytes(row, schema) for row in rows], schema))
        _commit(builder, writer.prepare_commit())
        writer.close()

    def update(self, path: str, column: str, values: dict[str, Any], blob: bool = False) -> None:
        """``values``: by row id; of a column of blobs, their text."""
        ids = pa.array([int(each) for each in values], pa.int64())
        builder = self.table(path).new_batch_write_builder()
        update = builder.new_update().with_update_type([column])
        new = [each.encode() for each in values.values()] if blob else list(values.values())
        found = pa.table({"_ROW_ID": ids, column: pa.array(new, pa.large_binary() if blob else None)})
        _commit(builder, update.update_by_arrow_with_row_id(found))

    def delete(self, path: str, ids: list[int]) -> None:
        """By row ids."""
        builder = self.table(path).new_batch_write_builder()
        _commit(builder, builder.new_update().delete_by_row_id(ids))

    def index(self, path: str, column: str, kind: str, drop: bool = False, options: Any = None) -> int:
        """Make a global index of a column, or drop it; how many files that were."""
        table = self.table(path)
        if drop:
            return int(table.drop_global_index(column, index_type=kind))
        if kind in LUMINA_IDENTIFIERS:
            _build_with_lumina()
        return int(table.create_global_index(column, index_type=kind, options=options))

    def search(self, path: str, column: str, asked: list[float] | str, count: int) -> list[dict[str, Any]]:
        """The rows whose vectors are nearest, or whose texts match best."""
        table = self.table(path)
        if isinstance(asked, str):
            query = json.dumps({"match": {"query": asked}})
            best = table.new_full_text_search_builder().with_query(column, query).with_limit(count).execute_local()
        else:
            searched = table.new_vector_search_builder().with_vector_column(column)
            best = searched.with_query_vector(asked).with_limit(count).execute_local()
        builder = table.new_read_builder()
        scan = builder.new_scan().with_global_index_result(best)
        return [dict(row) for row in builder.new_read().to_arrow(scan.plan().splits()).to_pylist()]

    def rows(
        self, path: str, version: int | None = None, columns: list[str] | None = None, raw: bool = False
    ) -> list[dict[str, Any]]:
        """``raw``: bytes as hexadecimal digits, whatever they say."""
        builder = self.table(path, version).new_read_builder()
        if columns is not None:
            builder = builder.with_projection(columns)
        found = builder.new_read().to_arrow(builder.new_scan().plan().splits())
        seen = (lambda value: value.hex() if isinstance(value, bytes) else value) if raw else _plain
        return [{key: seen(value) for key, value in row.items()} for row in found.to_pylist()]

    def ask(self, path: str, filters: str, all_rows: bool = False) -> list[str]:
        """``filters``: as ``PaimonEngine.ask`` has them, pickled, in base64. What is read is held against the filter
        once more, as pypaimon leaves out only what it can. ``all_rows``: nothing is left out before.
        """
        table = self.table(path)
        everything = self._rows(table, None) if all_rows else None
        answers = []
        for each in pickle.loads(base64.b64decode(filters)):
            wanted = _predicate(table.new_read_builder().new_predicate_builder(), each)
            try:
                found = self._rows(table, wanted) if everything is None else everything
                rows = sorted(repr(row) for row in found if wanted.test(OffsetRow(row, 0, len(row))))
                answers.append(f"{len(rows)} rows, {hashlib.sha256(repr(rows).encode()).hexdigest()[:16]}")
            except Exception as error:  # noqa: BLE001 - what it can't do is told
                answers.append(f"fails: {type(error).__name__}")
        return answers

    def _rows(self, table: Any, wanted: Any) -> list[tuple[Any, ...]]:
        builder = table.new_read_builder()
        if wanted is not None:
            builder = builder.with_filter(wanted)
        found = builder.new_read().to_arrow(builder.new_scan().plan().splits())
        return list(zip(*(column.to_pylist() for column in found.columns), strict=True))


class _Lumina:
    """Builds an index as pypaimon reads it: it has no builder of this kind, but Lumina itself has."""

    def __init__(self, table: Any, folder: str, kind: str) -> None:
        self.file_name = f"{kind}-global-index-{uuid.uuid4()}.index"
        self._table, self._path = table, f"{folder.rstrip('/')}/{self.file_name}"
        self._vectors: dict[int, list[float]] = {}

    def write(self, vector: list[float], row_id: int) -> None:
        self._vectors[row_id] = vector

    def finish(self) -> list[ResultEntry]:
        from lumina_data import LuminaBuilder

        # Of two graphs of the same vectors, each search finds a bit more or less.
        length, count = len(next(iter(self._vectors.values()))), len(self._vectors)
        options = {"index.type": "bruteforce", "index.dimension": str(length), "distance.metric": "l2"}
        numbers = [number for vector in self._vectors.values() for number in vector]
        self._table.file_io.check_or_mkdirs(self._path.rpartition("/")[0])
        with LuminaBuilder({**options, "encoding.type": "rawf32"}) as builder:
            builder.pretrain_from_list(numbers, count, length)
            builder.insert_from_list(numbers, list(self._vectors), count, length)
            builder.dump(self._path)
        # Lumina's threads share the stream that pypaimon opens: with several, searches fail now and then.
        told = LuminaIndexMeta({**options, "search.parallel_number": "1"})
        return [ResultEntry(self.file_name, count, told.serialize())]

    def close(self) -> None:
        pass


def _build_with_lumina() -> None:
    module: Any = sys.modules[GlobalIndexBuilder.__module__]
    module._GENERIC_INDEX_IDENTIFIERS += LUMINA_IDENTIFIERS
    build: Any = GlobalIndexBuilder
    build._validate_generic_index_table = lambda self: None
    build._create_generic_index_writer = lambda self, folder, _: _Lumina(self._table, folder, self._index_type)


_KINDS = {"=": "equal", "<>": "not_equal", "<": "less_than", "<=": "less_or_equal", ">": "greater_than"}
_KINDS |= {">=": "greater_or_equal", "null": "is_null", "not null": "is_not_null", "between": "between"}
_KINDS |= {"starts": "startswith", "ends": "endswith", "contains": "contains"}


def _predicate(build: Any, wanted: Any) -> Any:
    kind, *rest = wanted
    if kind in {"and", "or"}:
        parts = [_predicate(build, each) for each in rest]
        return build.and_predicates(parts) if kind == "and" else build.or_predicates(parts)
    if kind in {"in", "not in"}:
        return (build.is_in if kind == "in" else build.is_not_in)(rest[0], rest[1:])
    return getattr(build, _KINDS[kind])(*rest)


def _named(path: str) -> tuple[Any, str]:
    """A catalog, and what it calls the table."""
    warehouse, database, table = path.rsplit("/", 2)
    return CatalogFactory.create({"warehouse": warehouse}), f"{database.removesuffix('.db')}.{table}"


def _commit(builder: Any, messages: Any) -> None:
    commit = builder.new_commit()
    commit.commit(messages)
    commit.close()


def _type(kind: str) -> pa.DataType:
    """``float[3]`` is a vector of three floats; ``blobs`` an array of blobs, and ``int32 blobs`` a map of these."""
    if kind.endswith(" blobs"):
        return pa.map_(_type(kind.removesuffix(" blobs")), pa.large_binary())
    if kind == "blobs":
        return pa.list_(pa.large_binary())
    if kind.startswith("decimal"):
        return pa.decimal128(int(kind.removeprefix("decimal")), 2)
    element, bracket, length = kind.removesuffix("]").partition("[")
    found = pa.type_for_alias(element)
    return pa.list_(found, int(length)) if bracket else found


def _with_bytes(row: dict[str, Any], schema: pa.Schema) -> dict[str, Any]:
    return {**row, **{field.name: _bytes(row[field.name], field.type) for field in schema}}


def _bytes(value: Any, kind: pa.DataType) -> Any:
    """With bytes for the texts in columns of blobs, and for lists, which are the parts of what describes a blob: where
    it is, and of a video also the frame; or the table, the column and the row.
    """
    if value is None or not (pa.types.is_large_binary(kind) or pa.types.is_nested(kind)):
        return value
    if pa.types.is_map(kind):
        return [(_key(key, kind.key_type), _bytes(each, kind.item_type)) for key, each in value]
    if pa.types.is_nested(kind):
        return [_bytes(each, kind.value_type) for each in value]
    if isinstance(value, str):
        return value.encode()
    if value[0].startswith("file:"):
        return (BlobDescriptor(*value) if len(value) == 3 else VideoFrameDescriptor(*value, -1, 0)).serialize()
    return BlobViewStruct(*value).serialize()


def _key(value: Any, kind: pa.DataType) -> Any:
    """From what JSON has."""
    if pa.types.is_decimal(kind):
        return Decimal(value)
    if pa.types.is_date(kind):
        return date.fromisoformat(value)
    return value.encode() if pa.types.is_binary(kind) else value


def _plain(value: Any) -> Any:
    """Of bytes that describe a blob: the bytes that it names, for a frame of a video with its number."""
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if not isinstance(value, bytes):
        return str(value) if isinstance(value, date | Decimal) else value
    place = BlobDescriptor.parse_if_serialized(value)
    if place is None:
        return value.decode()
    with open(place.uri.removeprefix("file:").replace("//", "/"), "rb") as file:
        file.seek(place.offset)
        text = file.read(place.length).decode()
    return [text, place.frame_index] if isinstance(place, VideoFrameDescriptor) else [text]


def main() -> None:
    """Until the input ends."""
    # Lumina's library, too, writes to the standard output.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker = Worker()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"answer": getattr(worker, request.pop("do"))(**request)}
        except Exception as error:  # noqa: BLE001 - whatever it is, the test has to hear of it
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
