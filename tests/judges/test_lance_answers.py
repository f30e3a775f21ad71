"""What Lance's own reader answers to filters on a table, before and after maintenance; with its indices and without."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from dv_maintenance.dml.delete import delete
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.maintenance.execution.apply import maintain, purge
from dv_maintenance.maintenance.vacuum import vacuum
from dv_maintenance.tables import open_table
from dv_maintenance.tables.guard import VacuumRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dv_maintenance.tables.table import Table

SEEDS = range(max(2, round(3 * float(os.environ.get("DVM_ANSWERS", "1")))))
NAN, INF = float("nan"), float("inf")
VALUES: dict[str, tuple[pa.DataType, tuple[Any, ...]]] = {
    "f64": (pa.float64(), (NAN, 1.5, -0.0, 0.0, None, 50.0, INF, -INF, 1e300)),
    "f32": (pa.float32(), (NAN, 1.5, None, 0.1, -0.0, 7.0)),
    "dn": (pa.float64(), (NAN, None)),
    "i64": (pa.int64(), (2**53 + 1, -(2**63), 7, None, 0)),
    "u64": (pa.uint64(), (2**64 - 1, 0, None, 2**63)),
    "i8": (pa.int8(), (-128, 127, None, 0)),
    "dec": (pa.decimal128(9, 2), (Decimal("1.00"), Decimal("-9999999.99"), None)),
    "d38": (pa.decimal128(38, 0), (Decimal("9" * 38), Decimal("-" + "9" * 38), None, Decimal(0))),
    "s": (
        pa.string(),
        *[("a", "", None, "007", "é", "e\u0301", "\ud7ff", "\uffff", "\U0001f600", "x" * 90, "ab ", "O'Neill")],
    ),
    "bin": (pa.binary(), (b"\x00", b"\xff\x00", b"", None, b"z" * 70)),
    "b": (pa.bool_(), (True, False, None)),
    "d": (pa.date32(), (date(1, 1, 1), date(1500, 3, 1), None, date(2026, 1, 5), date(9999, 12, 31))),
    "ts": (pa.timestamp("us"), (datetime(1850, 1, 1), None, datetime(2026, 3, 8, 2, 30), datetime(1, 1, 1))),
    "tz": (pa.timestamp("us", "UTC"), (datetime(1850, 1, 1, 0, 0, 0, 1), None, datetime(9999, 12, 31, 23, 59, 59))),
}
INDICES = {
    "f64": "BTREE",
    "i64": "ZONEMAP",
    "s": "BTREE",
    "d": "BTREE",
    "b": "BITMAP",
    "f32": "ZONEMAP",
    "ts": "ZONEMAP",
    "bin": "BTREE",
    "d38": "BTREE",
}


def rows(draw: random.Random, first: int, count: int) -> pa.Table:
    columns = {name: pa.array(draw.choices(values, k=count), kind) for name, (kind, values) in VALUES.items()}
    nested = pa.StructArray.from_arrays([columns["f64"], columns["s"]], ["x", "t"])
    keys = pa.array([-1 - each if each % 12 == 6 else each for each in range(first, first + count)], pa.int64())
    inside = pa.array(draw.choices(([NAN, None], [], None, [0.0]), k=count), pa.list_(pa.float64()))
    return pa.table({"k": keys, **columns, "st": nested, "arr": inside})


def literal(name: str, value: Any) -> str:
    kind = VALUES[name][0]
    if isinstance(value, float):
        return f"CAST('{value}' AS {'FLOAT' if kind == pa.float32() else 'DOUBLE'})"
    if isinstance(value, Decimal):
        return f"CAST('{value}' AS DECIMAL({kind.precision}, {kind.scale}))"
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, datetime):
        return f"timestamp '{value.isoformat(sep=' ')}'"
    if isinstance(value, date):
        return f"date '{value.isoformat()}'"
    if isinstance(value, int) and value <= -(2**63):
        return f"CAST('{value}' AS BIGINT)"
    return str(value) if isinstance(value, bool | int) else "'" + value.replace("'", "''") + "'"


def conditions(draw: random.Random, count: int) -> Iterator[str]:
    def one(depth: int) -> str:
        if depth and draw.random() < 0.4:
            return f"({one(depth - 1)}) {draw.choice(['AND', 'OR'])} ({one(depth - 1)})"
        name = draw.choice(list(VALUES))
        at, other = (literal(name, value) for value in draw.choices([v for v in VALUES[name][1] if v is not None], k=2))
        column = draw.choice([name, "st.x"]) if name == "f64" else draw.choice([name, "st.t"]) if name == "s" else name
        forms = [f"{column} {operator} {at}" for operator in ("=", "<", "<=", ">", ">=", "<>")]
        forms += [
            f"{column} IN ({at}, {other})",
            f"{column} IS NULL",
            f"NOT ({column} <= {at})",
            f"NOT ({column} > {at})",
        ]
        forms += [f"{column} BETWEEN {at} AND {other}", f"{column} IS NOT NULL"]
        forms += [f"isnan({column})"] if name in {"f64", "f32", "dn"} else []
        forms += [f"{column} LIKE 'x%'", f"starts_with({column}, '0')"] if name == "s" else []
        return draw.choice(forms)

    for _ in range(count):
        yield one(2)


def answers(pylance: ModuleType, path: Path, asked: list[str], *, index: bool) -> list[str]:
    dataset = pylance.dataset(str(path))

    def answer(condition: str) -> str:
        try:
            found = dataset.scanner(filter=condition, use_scalar_index=index).to_table()
        except (ValueError, OSError, NotImplementedError) as error:
            return f"fails: {type(error).__name__}"
        return f"{found.num_rows} rows: {sorted(repr(list(row.values())) for row in found.to_pylist())}"

    return [answer(condition) for condition in asked]


def make(pylance: ModuleType, path: Path, draw: random.Random, storage: str, *, indexed: bool) -> None:
    for first in range(0, 240, 60):
        pylance.write_dataset(rows(draw, first, 60), str(path), mode="append", data_storage_version=storage)
    dataset = pylance.dataset(str(path))
    if indexed:
        for column, kind in INDICES.items():
            dataset.create_scalar_index(column, kind)
    dataset.delete("k % 7 = 3")


class Judged:
    """``before``: by whether an index was asked. Without one: what a scan of the rows says; its own reader may see NaN
    otherwise through an index.
    """

    def __init__(self, pylance: ModuleType, path: Path, asked: list[str]) -> None:
        self.pylance, self.path, self.asked = pylance, path, asked
        self.before = {index: answers(pylance, path, asked, index=index) for index in (False, True)}

    def compare(self, verb: str) -> None:
        for index in (False, True):
            after = answers(self.pylance, self.path, self.asked, index=index)
            wrong = [
                f"WHERE {condition}: {was[:60]} -> {now[:60]}"
                for condition, was, scanned, now in zip(
                    self.asked, self.before[index], self.before[False], after, strict=True
                )
                # Rows that an index finds otherwise than a scan: right once the index is not asked any more.
                if now not in {was, scanned}
            ]
            print(f"{verb}{', indexed' * index}: {len(wrong)} of {len(self.asked)} answers differ")
            assert not wrong, "\n".join([f"{verb}, {len(wrong)} of {len(self.asked)}", *wrong[:10]])


def _vacuum(table: Table) -> None:
    vacuum(table, VacuumRequest(retention=0, allow_short_retention=True, now=table.snapshot().timestamp + 10**10))


VERBS: dict[str, Callable[[Table], object]] = {
    "purge": lambda table: purge(table, LocalEngine()),
    "compact": lambda table: maintain(table, LocalEngine()),
    "vacuum": _vacuum,
}


@pytest.mark.parametrize(
    ("seed", "indexed", "storage"),
    [
        pytest.param(seed, seed % 2 == 1, storage, marks=() if seed < 2 and storage == "2.1" else pytest.mark.deep)
        for seed in SEEDS
        for storage in ("2.0", "2.1")
    ],
)
def test_the_same_answers(pylance: ModuleType, tmp_path: Path, seed: int, indexed: bool, storage: str) -> None:
    draw, path = random.Random(seed), tmp_path / "t.lance"
    make(pylance, path, draw, storage, indexed=indexed)
    judged = Judged(pylance, path, list(conditions(draw, 20 if seed < 2 else 300)))
    for verb, act in VERBS.items():
        act(open_table(str(path)))
        judged.compare(verb)


@pytest.mark.deep
@pytest.mark.parametrize("harm", ["DELETE", "UPDATE"])
def test_planted_faults_are_found(pylance: ModuleType, tmp_path: Path, harm: str) -> None:
    """A row that goes, and one that keeps all but the sign of its zero."""
    draw, path = random.Random(3), tmp_path / "t.lance"
    make(pylance, path, draw, "2.1", indexed=False)
    judged = Judged(pylance, path, list(conditions(draw, 60)))
    dataset = pylance.dataset(str(path))
    if harm == "DELETE":
        dataset.delete("k = 12")
    else:
        assert dataset.update({"f64": "0.0"}, where="f64 = 0.0")["num_rows_updated"]
    with pytest.raises(AssertionError, match="planted"):
        judged.compare("planted")


@pytest.mark.deep
@pytest.mark.parametrize("indexed", [False, True])
def test_a_delete_of_other_rows(pylance: ModuleType, spark: SparkSession, tmp_path: Path, indexed: bool) -> None:
    draw, path = random.Random(7), tmp_path / "t.lance"
    make(pylance, path, draw, "2.1", indexed=indexed)
    judged = Judged(pylance, path, [f"k >= 0 AND ({each})" for each in conditions(draw, 300)])
    table = open_table(str(path))
    assert delete(table, spark, "k = -7 OR k = -19").rows_deleted
    judged.compare("delete")
    for verb, act in VERBS.items():
        act(table)
        judged.compare(verb)
