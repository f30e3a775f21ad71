"""Paimon's own Java engine, in the JVM of the tests' Spark session: what it makes, reads, deletes, compacts, expires
and takes for waste. A class loader of its own holds it, so the session knows nothing of it.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["EngineConflictError", "EngineError", "PaimonEngine", "plain_rows"]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DV = {"deletion-vectors.enabled": "true"}
"""Options of a table that Paimon deletes from by deletion vectors."""
DV64 = DV | {"deletion-vectors.bitmap64": "true"}

Row = dict[str, Any]
_NUMBERS = count()


class EngineError(Exception):
    """What Paimon itself refused or failed at, with its message."""


class EngineConflictError(EngineError):
    """It saw that others had changed what it was about to commit on."""


class PaimonEngine:
    """Tables are folders. Values are plain ones, see ``plain``. ``more``: jars beside Paimon's own."""

    def __init__(self, spark: SparkSession, jar: Path, scratch: Path, more: Sequence[Path] = ()) -> None:
        jvm: Any = spark._jvm
        assert jvm is not None
        urls = spark._sc._gateway.new_array(jvm.java.net.URL, 1 + len(more))
        for at, each in enumerate((jar, *more)):
            urls[at] = jvm.java.io.File(str(each)).toURI().toURL()
        parent = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(jvm.java.net.URLClassLoader(urls, parent))
        compiler.setTargetVersion(8)
        compiler.setSourceVersion(8)
        name = f"PaimonJudge{next(_NUMBERS)}"  # Py4J keeps methods by the names of their classes
        compiler.cook((Path(__file__).parent / "PaimonJudge.java").read_text().replace("PaimonJudge", name))
        strings = spark._sc._gateway.new_array(jvm.java.lang.Class, 1)
        strings[0] = jvm.java.lang.Class.forName("java.lang.String")
        arguments = spark._sc._gateway.new_array(jvm.java.lang.Object, 1)
        arguments[0] = str(scratch)
        judge = compiler.getClassLoader().loadClass(name)
        self._judge = judge.getConstructor(strings).newInstance(arguments)
        self._stages = count()

    def _call(self, method: str, table: Path | str, **arguments: Any) -> Any:
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        told = {key: value for key, value in arguments.items() if value is not None}
        said = ""
        try:
            return json.loads(self._judge.call(method, json.dumps({"path": str(table), **told})))
        except PySparkException as error:  # of the kinds of errors that PySpark has a class for
            said = str(error)
        except Py4JJavaError as error:
            cause = error.java_exception
            while cause is not None:
                said += f"{cause.toString()}; "
                cause = cause.getCause()
        raise (EngineConflictError if "conflict" in said else EngineError)(said)

    # -- tables ----------------------------------------------------------------------------------------------------

    def serve(self, warehouse: Path, token: str) -> str:
        """Start the REST catalog of Paimon's own tests (``places.PAIMON_REST``), whose warehouse is called ``wh``. From
        then on, tables are not folders, but called ``shop.NAME``. Returns its URI.
        """
        return str(self._call("serve", warehouse, token=token))

    def restrict(self, table: str, where: tuple[str, Any] | None = None) -> None:
        """Let the REST catalog show readers only rows with a value in a column; by default all rows."""
        self._call("restrict", table, where=plain(where))

    def counted(self, table: str) -> dict[str, tuple[int, int, int]]:
        """What the REST catalog counts in each partition, by its name: rows, files, bytes."""
        found = self._call("counted", table)
        return {",".join(f"{key}={value}" for key, value in spec.items()): tuple(sums) for spec, *sums in found}

    def create(
        self,
        table: Path | str,
        columns: Mapping[str, Any],
        *,
        partition: Sequence[str] = (),
        key: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
    ) -> None:
        """``columns``: name to type, as Paimon's schema files have it (``"INT"``, ``{"type": "ARRAY", ...}``). A table
        without a bucket is of the unaware kind.
        """
        fields = [{"id": number, "name": name, "type": kind} for number, (name, kind) in enumerate(columns.items())]
        schema = {
            "fields": fields,
            "partitionKeys": list(partition),
            "primaryKeys": list(key),
            "options": {"bucket": "1" if key else "-1", **(options or {})},
            "comment": "",
        }
        self._call("create", table, schema=schema)

    def alter(self, table: Path | str, *changes: Sequence[str]) -> None:
        """``("add", name, type)``, ``("drop", name)``, ``("rename", name, new)``, ``("retype", name, type)`` or
        ``("option", name, value)``.
        """
        self._call("alter", table, changes=[list(each) for each in changes])

    def tag(self, table: Path | str, name: str, version: int | None = None) -> None:
        """The newest snapshot, or another one."""
        self._call("tag", table, name=name, at=version)

    def drop_tag(self, table: Path | str, name: str) -> None:
        self._call("dropTag", table, name=name)

    def branch(self, table: Path | str, name: str, tag: str) -> None:
        """A branch that begins with what is tagged."""
        self._call("branch", table, name=name, tag=tag)

    def rollback(self, table: Path | str, version: int) -> None:
        self._call("rollback", table, version=version)

    # -- looking ---------------------------------------------------------------------------------------------------

    def version(self, table: Path | str) -> int:
        version = self._call("latest", table)
        assert isinstance(version, int)
        return version

    def rows(
        self,
        table: Path | str,
        version: int | None = None,
        *,
        tag: str | None = None,
        branch: str | None = None,
        where: tuple[str, Any] | None = None,
        lineage: bool = False,
    ) -> list[Row]:
        """What a batch reader of Paimon sees, in its order. ``lineage``: with the ids of rows and their sequence
        numbers. ``where``: a column and the value looked for, null
        too; files that cannot hold it by their statistics are left out, rows of others are not.
        """
        where, asked = plain(where), lineage or None
        found = self._call("rows", table, version=version, tag_name=tag, branch=branch, where=where, lineage=asked)
        return [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]

    def ask(self, table: Path | str, filters: Sequence[Sequence[Any]], *, all_rows: bool = False) -> list[str]:
        """How many rows fulfil each filter, with a fingerprint of them. A filter is ``("and", FILTER, ...)``,
        ``("or", FILTER, ...)`` or a kind, a column and values: ``= <> < <= > >= in``, ``not in``, ``between``,
        ``starts``, ``ends``, ``contains``, ``null``, ``not null``. ``all_rows``: nothing is skipped.
        """
        found: list[str] = self._call("ask", table, filters=plain(list(filters)), all=all_rows or None)
        return found

    def files(self, table: Path | str, version: int) -> dict[str, dict[str, Any]]:
        """By name of each live file: ``rows``, ``level``, ``size``, and ``deleted`` positions where it has a DV."""
        answer: dict[str, dict[str, Any]] = self._call("files", table, version=version)
        return answer

    # -- writing ---------------------------------------------------------------------------------------------------

    def append(
        self,
        table: Path | str,
        rows: Iterable[Sequence[Any]],
        *,
        kinds: Iterable[str] | None = None,
        options: Mapping[str, str] | None = None,
        branch: str | None = None,
    ) -> None:
        """Rows as sequences of values, in a commit; of a primary-key table upserts, or ``kinds`` as ``-D``. Such a
        table is compacted on the way unless the options say ``write-only``.
        """
        if kinds is not None:
            rows = [[kind, *row] for kind, row in zip(kinds, rows, strict=True)]
        self._call("write", table, rows=plain(list(rows)), kinds=kinds and True, options=options, branch=branch)

    def stage_append(
        self, table: Path | str, rows: Iterable[Sequence[Any]], *, options: Mapping[str, str] | None = None
    ) -> Callable[[], None]:
        """An ``append`` that has written everything but its commit, and compacted: that is what the answer does."""
        stage = str(next(self._stages))
        self._call("write", table, rows=plain(list(rows)), options=options, stage=stage)
        return lambda: self._call("finish", table, stage=stage)

    def delete(
        self,
        table: Path | str,
        where: Callable[[Row], bool],
        *,
        new: Iterable[Sequence[Any]] | None = None,
        lineage: bool = False,
    ) -> int:
        """What DELETE does to an append table, or with rows to append what UPDATE and MERGE do; how many rows.
        ``lineage``: the new rows end in an id and a sequence number, null where the row has changed.
        """
        finish, rows = self._stage(table, where, new, None, lineage or None)
        finish()
        return rows

    def stage_delete(
        self, table: Path | str, where: Callable[[Row], bool], *, new: Iterable[Sequence[Any]] | None = None
    ) -> Callable[[], None]:
        """A ``delete`` that has read and written everything but its commit: that is what the answer does."""
        return self._stage(table, where, new, str(next(self._stages)))[0]

    def _stage(
        self,
        table: Path | str,
        where: Callable[[Row], bool],
        new: Iterable[Sequence[Any]] | None,
        stage: str | None,
        lineage: bool | None = None,
    ) -> tuple[Callable[[], None], int]:
        found = self._call("rows", table, placed=True)
        positions: dict[str, list[int]] = {}
        for name, position, *values in found["rows"]:
            if where(dict(zip(found["columns"], values, strict=True))):
                positions.setdefault(name, []).append(position)
        rows = None if new is None else plain(list(new))

        def staged(stage: str | None) -> None:
            self._call("delete", table, positions=positions, rows=rows, stage=stage, lineage=lineage)

        total = sum(map(len, positions.values()))
        if stage is None:
            return lambda: staged(None), total
        staged(stage)
        return lambda: self._call("finish", table, stage=stage), total

    def compact(self, table: Path | str, *, full: bool = True, options: Mapping[str, str] | None = None) -> int:
        """By Paimon's own choice of files; how many compactions that were."""
        done = self._call("compact", table, full=full, options=options)
        assert isinstance(done, int)
        return done

    def cluster(self, table: Path | str, *, full: bool = False) -> int:
        """Incremental clustering by the first of ``clustering.columns``, of Paimon's own choice of files; in how many
        partitions.
        """
        found = self._call("cluster", table, full=full)
        assert isinstance(found, int)
        return found

    def index(self, table: Path | str) -> int:
        """Give each file the indexes that the table's options ask for, as ``sys.rewrite_file_index`` does; how many."""
        found = self._call("index", table)
        assert isinstance(found, int)
        return found

    def checkpoint(self, table: Path | str, number: int, options: Mapping[str, str] | None = None) -> int:
        """One checkpoint of a streaming job that compacts and remembers the files of its buckets; how many buckets had
        rows in level 0. ``end_stream`` ends the job.
        """
        found = self._call("checkpoint", table, number=number, options=options)
        assert isinstance(found, int)
        return found

    def end_stream(self, table: Path | str) -> None:
        self._call("endStream", table)

    def expire(self, table: Path | str, keep: int = 1) -> int:
        """All snapshots but the newest ``keep``, whatever their age; how many went."""
        gone = self._call("expire", table, keep=keep)
        assert isinstance(gone, int)
        return gone

    def expire_by_options(self, table: Path | str, options: Mapping[str, str] | None = None) -> tuple[int, ...]:
        """Expire as Paimon does after each commit: snapshots by the table's options, then changelogs, if the options
        let them outlive snapshots. Returns how many of each expired.
        """
        return tuple(self._call("expireByOptions", table, options=options))

    def changes(self, table: Path | str, version: int) -> list[list[Any]]:
        """What a streaming reader is given from that snapshot on, or from its changelog on: kind and values of rows."""
        found: list[list[Any]] = self._call("changes", table, **{"from": version})
        return found

    def orphans(self, table: Path | str, older_than: int, *, dry_run: bool = True) -> list[str]:
        """Paths of files older than that (epoch milliseconds) which Paimon's cleaner takes for waste."""
        return sorted(self._call("orphans", table, older_than=older_than, dry_run=dry_run))


# -- values -----------------------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """A value as both sides can write it down: floats by their bits, times as numbers since the epoch (nanoseconds only
    where the type has more than six digits, and then as integers already), decimals as
    text, bytes in base64, rows and arrays as lists, maps as pairs.
    """
    if isinstance(value, float):
        # Java's own NaN: others' bits are not kept by Parquet's writers.
        return 0x7FF8000000000000 if value != value else struct.unpack("<q", struct.pack("<d", value))[0]
    if isinstance(value, datetime):
        since = (value if value.tzinfo else value.replace(tzinfo=UTC)) - EPOCH
        return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    if isinstance(value, date):
        return value.toordinal() - EPOCH.toordinal()
    if isinstance(value, time):
        return ((value.hour * 60 + value.minute) * 60 + value.second) * 1000 + value.microsecond // 1000
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return [plain(each) for each in value.values()]
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


def plain_rows(table: pa.Table) -> list[Row]:
    """Rows as ``PaimonEngine.rows`` gives them."""
    columns = {
        name: [_plain_typed(each, column.type) for each in _listed(column)]
        for name, column in zip(table.column_names, table.columns, strict=True)
    }
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _listed(column: pa.ChunkedArray) -> list[Any]:
    """Python has no nanoseconds."""
    found: list[Any] = column.cast(_numbered(column.type)).to_pylist()
    return found


def _numbered(type: pa.DataType) -> pa.DataType:
    """The type with numbers for nanoseconds."""
    if pa.types.is_struct(type):
        return pa.struct([each.with_type(_numbered(each.type)) for each in type])
    if pa.types.is_list(type):
        return pa.list_(type.value_field.with_type(_numbered(type.value_type)))
    if pa.types.is_map(type):
        return pa.map_(type.key_field, type.item_field.with_type(_numbered(type.item_type)))
    return pa.int64() if pa.types.is_timestamp(type) and type.unit == "ns" else type


def _plain_typed(value: Any, type: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_map(type):
        pairs = [[_plain_typed(key, type.key_type), _plain_typed(each, type.item_type)] for key, each in value]
        return sorted(pairs, key=lambda pair: json.dumps(pair[0]))
    if pa.types.is_struct(type):
        return [_plain_typed(value[each.name], each.type) for each in type]
    if pa.types.is_list(type):
        return [_plain_typed(each, type.value_type) for each in value]
    if pa.types.is_timestamp(type) and type.unit == "ns" and not isinstance(value, int):
        return plain(value) * 1000 + value.nanosecond  # of pandas
    return plain(value)
