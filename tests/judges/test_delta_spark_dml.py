"""Random histories of DELETE, UPDATE and MERGE on twins: one changed by delta-spark alone, the other by both of us in
turns. Both must hold the same rows, whoever reads them, and tell the same history and the same changes.

``DVM_HISTORIES`` says how many; with it they are other ones each time.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from support.twins import Twins, rows_of

from dv_maintenance.dml.delete import delete
from dv_maintenance.dml.merge import merge
from dv_maintenance.dml.update import update
from dv_maintenance.maintenance.changes import read_changes
from dv_maintenance.maintenance.read import read
from dv_maintenance.storage import Storage
from dv_maintenance.tables.delta.table import DeltaTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")

HISTORIES: Final = int(os.environ.get("DVM_HISTORIES", "4"))


@dataclass(frozen=True)
class Kind:
    """A type of column: what it holds as SQL over ``id``, and SQL over the column, which is {c}; {i} is what stands
    before other columns."""

    sql_type: str
    value: str
    conditions: tuple[str, ...]
    updates: tuple[str, ...]
    partitions: bool = True


KINDS: Final = (
    Kind("INT", "CAST(id % 5 AS INT)", ("{c} = 3", "{c} > 2", "2 >= {c}", "{c} NOT IN (1, 2)"), ("{c} + 1",)),
    Kind("BIGINT", "id DIV 50", ("{c} = 1", "{c} BETWEEN 1 AND 2", "NOT ({c} < 1)"), ("{c} * 2", "{i}id")),
    Kind("STRING", "concat(chr(97 + id % 4), '/ü %')", ("{c} > 'b'", "{c} LIKE 'a%'", "{c} = 'c/ü %'"), ("'n=w'",)),
    Kind(
        "DATE", "date_add(DATE '1969-12-30', CAST(id % 6 AS INT))", ("{c} < '1970-01-02'",), ("{c} + INTERVAL 1 DAY",)
    ),
    Kind("DECIMAL(12, 3)", "id / 8", ("{c} >= 4.125", "{c} = 1"), ("{c} + 0.5",), partitions=False),
    Kind("DOUBLE", "IF(id % 9 = 1, DOUBLE('NaN'), id / 3)", ("{c} > 20.5", "isnan({c})"), ("-{c}",), partitions=False),
    Kind("BOOLEAN", "id % 3 = 0", ("{c}", "{c} <=> FALSE"), ("NOT {c}",)),
    Kind(
        "TIMESTAMP",
        "timestamp_micros((id - 40) * 3600000456)",
        ("{c} > TIMESTAMP '1970-01-01 05:00:00'",),
        ("{c} + INTERVAL 1 HOUR",),
        partitions=False,
    ),
    Kind(
        "STRUCT<a: INT, tags: ARRAY<STRING>>",
        "named_struct('a', CAST(id % 3 AS INT), 'tags', IF(id % 2 = 0, NULL, array('x', NULL)))",
        ("{c}.a = 1", "size({c}.tags) > 0"),
        ("named_struct('a', {c}.a + 1, 'tags', {c}.tags)",),
        partitions=False,
    ),
)


@dataclass(frozen=True)
class Column:
    name: str
    kind: Kind
    null_each: int

    @property
    def value(self) -> str:
        return f"CAST(IF(id % {self.null_each} = 1, NULL, {self.kind.value}) AS {self.kind.sql_type})"


@dataclass(frozen=True)
class Clause:
    """Of a MERGE: for us a method and its arguments, for delta-spark SQL."""

    method: str
    arguments: Mapping[str, Any]
    sql: str


@dataclass(frozen=True)
class Step:
    """One statement, run by us on the second twin if ``ours``."""

    operation: str
    ours: bool
    condition: str | None = None
    changes: tuple[tuple[str, str], ...] = ()
    source: str = ""
    on: str = ""
    clauses: tuple[Clause, ...] = ()

    @property
    def sql(self) -> str:
        where = "" if self.condition is None else f" WHERE {self.condition}"
        match self.operation:
            case "DELETE":
                return "DELETE FROM {t}" + where
            case "UPDATE":
                return "UPDATE {t} SET " + ", ".join(f"{name} = {sql}" for name, sql in self.changes) + where
        clauses = " ".join(clause.sql for clause in self.clauses)
        return f"MERGE INTO {{t}} t USING ({self.source}) s ON {self.on} {clauses}"

    def run(self, table: DeltaTable, spark: SparkSession) -> None:
        match self.operation:
            case "DELETE":
                delete(table, spark, self.condition)
            case "UPDATE":
                update(table, spark, dict(self.changes), self.condition)
            case _:
                begun = merge(table, spark, self.source, self.on, target_alias="t", source_alias="s")
                for clause in self.clauses:
                    begun = getattr(begun, clause.method)(**clause.arguments)
                begun.execute()


@dataclass(frozen=True)
class History:
    columns: tuple[Column, ...]
    partitioned_by: tuple[str, ...]
    change_data: bool
    rows: int
    files: int
    steps: tuple[Step, ...]

    @property
    def creation(self) -> str:
        columns = ", ".join(["id BIGINT", *(f"{each.name} {each.kind.sql_type}" for each in self.columns)])
        by = f"PARTITIONED BY ({', '.join(self.partitioned_by)})" if self.partitioned_by else ""
        values = ", ".join(["id", *(each.value for each in self.columns)])
        return f"""
            CREATE TABLE {{t}} ({columns}) USING delta {by} TBLPROPERTIES (
                'delta.enableDeletionVectors' = 'true', 'delta.enableChangeDataFeed' = '{self.change_data}');
            INSERT INTO {{t}} SELECT /*+ REPARTITION_BY_RANGE({self.files}, id) */ {values} FROM range({self.rows})
        """


# -- strategies --------------------------------------------------------------------------------------------------------


def conditions(columns: tuple[Column, ...], prefix: str = "") -> st.SearchStrategy[str]:
    about_id = st.builds(
        lambda text, number: text.format(n=number, i=f"{prefix}id"),
        st.sampled_from(["{i} % 3 = 1", "{i} < {n}", "{i} >= {n} AND {i} % 2 = 0", "{n} < {i}", "{i} = {n}"]),
        st.integers(0, 700),
    )
    about_columns = [
        text.format(c=f"{prefix}{column.name}")
        for column in columns
        for text in (*column.kind.conditions, "{c} IS NULL", "{c} IS NOT NULL")
    ]
    leaves = st.one_of(about_id, st.sampled_from(about_columns))
    both = st.builds(lambda one, link, two: f"({one}) {link} ({two})", leaves, st.sampled_from(["AND", "OR"]), leaves)
    return st.one_of(leaves, both, both, leaves.map(lambda one: f"NOT ({one})"))


@st.composite
def assignments(draw: st.DrawFn, columns: tuple[Column, ...], prefix: str = "") -> tuple[tuple[str, str], ...]:
    chosen = draw(st.lists(st.sampled_from(columns), min_size=1, max_size=2, unique=True))
    return tuple(
        (
            column.name,
            draw(st.sampled_from([*column.kind.updates, "NULL"])).format(c=f"{prefix}{column.name}", i=prefix),
        )
        for column in chosen
    )


@st.composite
def merges(draw: st.DrawFn, columns: tuple[Column, ...], rows: int, ours: bool) -> Step:
    first, length = draw(st.integers(0, rows)), draw(st.sampled_from([1, 30, rows]))
    values = ", ".join(["id", *(each.value + f" AS {each.name}" for each in columns)])
    source = f"SELECT {values} FROM range({first}, {first + length})"
    on = "t.id = s.id" + draw(st.sampled_from(["", " AND t.id % 3 <> 0", " AND t.id >= 20"]))
    of_target = conditions(columns, "t.")
    clauses = []

    def add(verb: str, kind: str, **arguments: Any) -> None:
        condition = arguments.get("condition")
        when = f"WHEN {kind}" + (f" AND ({condition})" if condition else "") + " THEN "
        name = kind.lower().replace(" ", "_")
        if verb == "UPDATE":
            what = "UPDATE SET " + ", ".join(f"{column} = {sql}" for column, sql in arguments["set"].items())
        else:
            what = {"DELETE": "DELETE", "UPDATE ALL": "UPDATE SET *", "INSERT ALL": "INSERT *"}[verb]
        clauses.append(Clause(f"when_{name}_{verb.lower().replace(' ', '_')}", arguments, when + what))

    if draw(st.booleans()):
        add("DELETE", "MATCHED", condition=draw(of_target))
    if draw(st.booleans()):
        add("UPDATE", "MATCHED", condition=draw(of_target), set=dict(draw(assignments(columns, "t."))))
    if draw(st.booleans()):
        add("UPDATE ALL", "MATCHED")
    if draw(st.booleans()):
        add("INSERT ALL", "NOT MATCHED", condition=draw(st.sampled_from([None, "s.id % 2 = 0"])))
    if draw(st.booleans()):
        add("DELETE", "NOT MATCHED BY SOURCE", condition=draw(of_target))
    if not clauses or draw(st.booleans()):
        changes = dict(draw(assignments(columns, "t.")))
        add("UPDATE", "NOT MATCHED BY SOURCE", condition=draw(of_target), set=changes)
    return Step("MERGE", ours, source=source, on=on, clauses=tuple(clauses))


@st.composite
def histories(draw: st.DrawFn) -> History:
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4, unique=True))
    columns = tuple(Column(f"c{at}", kind, draw(st.sampled_from([4, 10, 10_000]))) for at, kind in enumerate(kinds))
    able = [each.name for each in columns if each.kind.partitions]
    by = draw(st.lists(st.sampled_from(able), max_size=min(2, len(columns) - 1), unique=True)) if able else []
    rows = draw(st.sampled_from([60, 300, 1000]))
    steps = []
    for ours in (True, draw(st.booleans()), draw(st.booleans())):
        operation = draw(st.sampled_from(["DELETE", "UPDATE", "MERGE"]))
        if operation == "MERGE":
            steps.append(draw(merges(columns, rows, ours)))
            continue
        condition = draw(st.one_of(conditions(columns), conditions(columns), conditions(columns), st.none()))
        changes = draw(assignments(columns)) if operation == "UPDATE" else ()
        steps.append(Step(operation, ours, condition, changes))
    return History(columns, tuple(by), draw(st.booleans()), rows, draw(st.integers(1, 4)), tuple(steps))


# -- what both must agree on -------------------------------------------------------------------------------------------


def ours_of(place: Path) -> DeltaTable:
    return DeltaTable(Storage(str(place)))


def counted_rows(spark: SparkSession, twins: Twins) -> tuple[list[Any], list[Any]]:
    """Operations and the rows they counted, as DESCRIBE HISTORY there shows them: of delta-spark's twin, of ours."""
    return both(
        twins,
        lambda place: (
            spark.sql(f"DESCRIBE HISTORY delta.`{place}`")
            .where("operation IN ('DELETE', 'UPDATE', 'MERGE')")
            .selectExpr("operation", "version", "map_filter(operationMetrics, (name, value) -> name LIKE '%Rows%')")
        ),
        list,
    )


def rows_there(spark: SparkSession, twins: Twins) -> tuple[Counter[str], Counter[str]]:
    return both(twins, lambda place: spark.read.format("delta").load(str(place)), rows_of)


def changes_there(spark: SparkSession, twins: Twins) -> tuple[Counter[str], Counter[str]]:
    feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 0)
    return both(twins, lambda place: feed.load(str(place)).drop("_commit_timestamp"), rows_of)


def both(twins: Twins, query: Callable[[Path], DataFrame], what: Callable[[Any], T]) -> tuple[T, T]:
    """Asked of both twins at once: half of what a small query costs is that it is one."""
    asked = query(twins.theirs).selectExpr("0 AS twin", "*").union(query(twins.ours).selectExpr("1 AS twin", "*"))
    rows = asked.toArrow().to_pylist()
    theirs, ours = ([{**row, "twin": 0} for row in rows if row["twin"] == twin] for twin in (0, 1))
    return what(theirs), what(ours)


def read_here(place: Path) -> list[dict[str, Any]]:
    schema, batches = read(ours_of(place))
    return pa.Table.from_batches(batches, schema=schema).to_pylist()


def changes_here(place: Path) -> list[dict[str, Any]]:
    feed, batches = read_changes(ours_of(place), 0)
    return pa.Table.from_batches(batches, schema=feed.schema).drop_columns(["_commit_timestamp"]).to_pylist()


ALL_OF_A_KIND: Final = History(
    tuple(Column(f"c{at}", kind, 4) for at, kind in enumerate(KINDS)),
    ("c2", "c0"),
    change_data=True,
    rows=60,
    files=2,
    steps=(
        Step("UPDATE", True, "c4 > 3.5", (("c2", "'moved'"), ("c8", "NULL"))),
        Step("DELETE", False, "id % 4 = 0"),
        Step("DELETE", True, "id % 5 = 0"),
    ),
)


@pytest.mark.deep
@settings(
    max_examples=HISTORIES,
    derandomize="DVM_HISTORIES" not in os.environ,
    phases=[Phase.explicit, Phase.generate],  # to shrink takes minutes, and histories are short
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
@example(ALL_OF_A_KIND)
@given(history=histories())
def test_histories(delta_spark: SparkSession, history: History) -> None:
    with tempfile.TemporaryDirectory() as folder:
        twins = Twins.make(delta_spark, Path(folder), history.creation)
        for step in history.steps:
            twins.sql(step.sql)
            if step.ours:
                step.run(twins.table, delta_spark)
            else:
                delta_spark.sql(step.sql.format(t=f"delta.`{twins.ours}`"))
        wanted, ours = rows_there(delta_spark, twins)
        assert ours == wanted
        for place in (twins.ours, twins.theirs):
            assert rows_of({"twin": 0, **row} for row in read_here(place)) == wanted
        theirs_counted, ours_counted = counted_rows(delta_spark, twins)
        assert ours_counted == theirs_counted
        if history.change_data:
            changes, ours = changes_there(delta_spark, twins)
            assert ours == changes
            for place in (twins.ours, twins.theirs):
                assert rows_of({"twin": 0, **row} for row in changes_here(place)) == changes
