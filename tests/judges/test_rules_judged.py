"""A table's rules hold for what is stored, and a MERGE whose source matches a row twice is refused: as in delta-spark,
which runs the same statements on a twin.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from support.readers import with_delta_spark
from support.twins import Twins, make_table, rows_of

from dv_maintenance.dml.clauses import with_clauses
from dv_maintenance.dml.merge import merge
from dv_maintenance.dml.update import update
from dv_maintenance.errors import DvMaintenanceError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DV: Final = "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"

# -- what is stored ----------------------------------------------------------------------------------------------------

RULED: Final = f"""
    CREATE TABLE {{t}} (id BIGINT, p STRING NOT NULL, q STRING GENERATED ALWAYS AS (substring(n, 1, 1)), r STRING,
        c CHAR(4), b BINARY, n STRING, g STRING GENERATED ALWAYS AS (coalesce(r, 'null')),
        s STRUCT<a: INT NOT NULL, x: STRING>, d DECIMAL(5, 2))
        USING delta PARTITIONED BY (p, q, r, c, b) {DV};
    INSERT INTO {{t}} (id, p, r, c, b, n, s, d)
        VALUES (1, 'p', 'r', 'cc', X'62', 'name', named_struct('a', 1, 'x', 'y'), 1),
            (2, 'p2', 'r2', 'cc', X'63', 'other', named_struct('a', 1, 'x', 'y'), 2);
    ALTER TABLE {{t}} ADD CONSTRAINT some_c CHECK (c IS NOT NULL);
    ALTER TABLE {{t}} ADD CONSTRAINT low_d CHECK (d < 100)
"""
# What an empty text, a null in a struct, or a rounded number makes of rules.
BREAKS: Final = ("p = ''", "n = ''", "r = ''", "c = ''", "s = NULL", "d = 99.999")
FITS: Final = ("p = ' '", "n = 'zz'", "r = 'r3'", "d = 99.994", "s = named_struct('a', 2, 'x', NULL)")
INSERTS: Final = ("(id, p, c, d) VALUES (s.id, '', 'c', 1)", "(id, p, c, d, s) VALUES (s.id, 'p', '', 1, NULL)")


class Statements:
    """Statements run by delta-spark on one twin and by us on the other: whether each refuses."""

    def __init__(self, twins: Twins) -> None:
        self.twins = twins

    def update(self, assignment: str) -> tuple[bool, bool]:
        column, value = assignment.split(" = ", 1)
        ours = partial(update, self.twins.table, self.twins.spark, {column: value}, "id = 1")
        return self._both(f"UPDATE {{t}} SET {assignment} WHERE id = 1", ours)

    def merge(self, source: str, on: str, clauses: Sequence[str]) -> tuple[bool, bool]:
        begun = merge(self.twins.table, self.twins.spark, source, on, target_alias="t", source_alias="s")
        sql = f"MERGE INTO {{t}} t USING ({source}) s ON {on} " + " ".join(f"WHEN {each}" for each in clauses)
        return self._both(sql, with_clauses(begun, clauses).execute)

    def _both(self, sql: str, ours: Callable[[], Any]) -> tuple[bool, bool]:
        return refused(partial(self.twins.sql, sql)), refused(ours)


def refused(statement: Callable[[], Any]) -> bool:
    try:
        statement()
    except DvMaintenanceError:
        return True
    except (PySparkException, Py4JJavaError) as error:
        if re.search("InvariantViolation|MULTIPLE_SOURCE_ROW|OMIT_CONDITION", str(error)):
            return True
        raise
    return False


@pytest.fixture(scope="module")
def ruled(delta_spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_table(delta_spark, tmp_path_factory.mktemp("ruled") / "made", RULED)


def test_rules_hold_for_what_is_stored(delta_spark: SparkSession, ruled: Path, tmp_path: Path) -> None:
    """An empty text was checked as such, and stored as null."""
    statements = Statements(Twins.of(delta_spark, ruled, tmp_path))
    before = statements.twins.table.version()
    assert statements.update("p = ''") == (True, True)
    clauses = [
        "MATCHED AND t.id = 1 THEN UPDATE SET r = ''",
        "NOT MATCHED THEN INSERT (id, p, c, d) VALUES (s.id, 'p', '', 1)",
    ]
    assert statements.merge("SELECT explode(array(1L, 9L)) AS id", "t.id = s.id", clauses) == (True, True)
    assert statements.twins.table.version() == before


@pytest.mark.deep
def test_each_rule_by_each_statement(delta_spark: SparkSession, ruled: Path, tmp_path: Path) -> None:
    statements = Statements(Twins.of(delta_spark, ruled, tmp_path))
    for assignment in (*BREAKS, *FITS):
        wanted = (assignment in BREAKS,) * 2
        assert statements.update(assignment) == wanted, assignment
        clause = f"MATCHED THEN UPDATE SET {assignment}"
        assert statements.merge("SELECT 1L AS id", "t.id = s.id", [clause]) == wanted, assignment
    for values in INSERTS:
        clause = f"NOT MATCHED THEN INSERT {values}"
        assert statements.merge("SELECT 9L AS id", "t.id = s.id", [clause]) == (True, True), values
    theirs, ours = (with_delta_spark(delta_spark, tmp_path / name).to_pylist() for name in ("theirs", "ours"))
    assert rows_of(ours) == rows_of(theirs)


# -- several matches ---------------------------------------------------------------------------------------------------

PLAIN: Final = f"""
    CREATE TABLE {{t}} (id BIGINT, n STRING) USING delta {DV};
    INSERT INTO {{t}} SELECT /*+ REPARTITION_BY_RANGE(2, id) */ id, concat('n', id) FROM range(10)
"""
TWICE: Final = "SELECT * FROM VALUES (1L, 1), (1L, 2), (77L, 1) AS (id, k)"
# The source has row 1 twice, as k = 1 and k = 2. Whether a clause acts on both does not matter.
MERGES: Final[Sequence[tuple[Sequence[str], bool]]] = (
    (("MATCHED AND s.k = 1 THEN UPDATE SET n = 'x'",), True),
    (("MATCHED AND nullif(s.k, 2) = 1 THEN UPDATE SET n = 'only one is not null'",), False),
    (("MATCHED AND t.id > 7 THEN UPDATE SET n = 'in another file'",), False),
    (("MATCHED THEN DELETE", "NOT MATCHED THEN INSERT (id) VALUES (s.id)"), False),
    (("MATCHED AND s.k = 1 THEN DELETE",), True),
    (("MATCHED AND s.k > 5 THEN DELETE",), True),
    (("MATCHED AND true THEN DELETE",), True),
    (("MATCHED AND s.k = 1 THEN DELETE", "MATCHED AND s.k = 2 THEN DELETE"), True),
    (("MATCHED AND t.id > 0 THEN UPDATE SET n = 'x'",), True),
    (("MATCHED AND t.id > 7 THEN DELETE", "NOT MATCHED THEN INSERT (id) VALUES (s.id)"), True),
    (("MATCHED AND nullif(s.k, 2) = 1 THEN DELETE", "NOT MATCHED THEN INSERT (id) VALUES (s.id)"), True),
    (("NOT MATCHED BY SOURCE AND t.id = 3 THEN DELETE",), True),
    (("MATCHED AND s.k = 1 THEN DELETE", "NOT MATCHED BY SOURCE AND t.id = 3 THEN DELETE"), True),
    (("MATCHED THEN DELETE", "NOT MATCHED BY SOURCE AND t.id = 3 THEN UPDATE SET n = 'x'"), False),
    (("NOT MATCHED AND s.k = 1 THEN INSERT (id) VALUES (s.id)",), False),
    (("MATCHED THEN DELETE", "MATCHED THEN UPDATE SET n = 'never'"), True),
)


@pytest.fixture(scope="module")
def plain(delta_spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_table(delta_spark, tmp_path_factory.mktemp("plain") / "made", PLAIN)


def check_merges(delta_spark: SparkSession, made: Path, folder: Path, merges: Sequence[Any]) -> None:
    for at, (clauses, wrong) in enumerate(merges):
        statements = Statements(Twins.of(delta_spark, made, folder / str(at)))
        assert statements.merge(TWICE, "t.id = s.id", clauses) == (wrong, wrong), clauses
        if not wrong:
            statements.twins.check_content()


def test_a_row_that_the_source_matches_twice(delta_spark: SparkSession, plain: Path, tmp_path: Path) -> None:
    """It was changed if only one clause acted, and only once."""
    check_merges(delta_spark, plain, tmp_path, MERGES[:1])


@pytest.mark.deep
def test_rows_that_the_source_matches_twice(delta_spark: SparkSession, plain: Path, tmp_path: Path) -> None:
    check_merges(delta_spark, plain, tmp_path, MERGES[1:])
    statements = Statements(Twins.of(delta_spark, plain, tmp_path / "on"))
    once = statements.merge(TWICE, "t.id = s.id AND s.k = 1", ["MATCHED THEN UPDATE SET n = 'x'"])
    assert once == (False, False), "a match that the condition leaves out does not count"
