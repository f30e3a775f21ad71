"""Clauses of a MERGE from text: conditions and values reach Spark as they were written."""

from __future__ import annotations

from typing import Any

import pytest

from dv_maintenance.dml.clauses import with_clauses
from dv_maintenance.dml.merge import Merge
from dv_maintenance.errors import UsageError

NOTHING: Any = None
BEGUN = Merge(NOTHING, NOTHING, "source", "target.id = source.id")
ALL_ODD = r"MATCHED AND (s.x = 'then' OR s.`end` RLIKE '\\d') THEN UPDATE SET t.`a b` = f(s.b, 1), c = cast(s.x AS INT)"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("MATCHED THEN DELETE", BEGUN.when_matched_delete()),
        ("when  matched\nand a then update set *", BEGUN.when_matched_update_all("a")),
        (
            ALL_ODD,
            BEGUN.when_matched_update(
                {"`t`.`a b`": "f(s.b, 1)", "c": "cast(s.x AS INT)"}, r"(s.x = 'then' OR s.`end` RLIKE '\\d')"
            ),
        ),
        (
            "MATCHED AND CASE WHEN s.end THEN 1 END = 1 THEN UPDATE SET a = s.case, b = 1",
            BEGUN.when_matched_update({"a": "s.case", "b": "1"}, "CASE WHEN s.end THEN 1 END = 1"),
        ),
        (
            "MATCHED THEN UPDATE SET target.address.city = s.city, city = ''",
            BEGUN.when_matched_update({"`target`.`address`.`city`": "s.city", "city": "''"}),
        ),
        ("NOT MATCHED THEN INSERT *", BEGUN.when_not_matched_insert_all()),
        (
            "NOT MATCHED BY TARGET AND s.a THEN INSERT (a, `b`) VALUES (s.a, array(1, 2)[0])",
            BEGUN.when_not_matched_insert({"a": "s.a", "b": "array(1, 2)[0]"}, "s.a"),
        ),
        ("NOT MATCHED BY SOURCE AND t.a THEN DELETE", BEGUN.when_not_matched_by_source_delete("t.a")),
        ("NOT MATCHED BY SOURCE THEN UPDATE SET a = 1", BEGUN.when_not_matched_by_source_update({"a": "1"})),
    ],
)
def test_clauses(text: str, wanted: Merge) -> None:
    assert with_clauses(BEGUN, [text]) == wanted


def test_in_their_order() -> None:
    found = with_clauses(BEGUN, ["MATCHED AND s.gone THEN DELETE", "MATCHED THEN UPDATE SET *"])
    assert found == BEGUN.when_matched_delete("s.gone").when_matched_update_all()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "matched",
        "MATCHED AND THEN DELETE",
        "MATCHED AND a DELETE",
        "MATCHED THEN INSERT *",
        "MATCHED THEN DELETE now",
        "MATCHED THEN UPDATE SET",
        "MATCHED THEN UPDATE SET a",
        "MATCHED THEN UPDATE SET a = 1, A = 2, a = 3",
        "NOT MATCHED THEN DELETE",
        "NOT MATCHED THEN INSERT (a, b) VALUES (1)",
        "NOT MATCHED THEN INSERT (a, a) VALUES (1, 2)",
        "NOT MATCHED BY SOURCE THEN UPDATE SET *",
        "MATCHED AND a = 'x THEN DELETE",
        "`MATCHED` THEN DELETE",
        "MATCHED THEN INSERT (a",
    ],
)
def test_what_is_no_clause(text: str) -> None:
    with pytest.raises(UsageError, match="not a MERGE clause"):
        with_clauses(BEGUN, [text])
