"""Tables maintained by us: Iceberg's own Spark runtime reads the same rows with the same lineage, goes on deleting,
updating, merging, compacting and expiring, and no delete of its is lost.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from iceberg_engine import IcebergEngine

from dv_maintenance.dml.delete import delete
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.maintenance.execution.apply import maintain, purge
from dv_maintenance.maintenance.read import read
from dv_maintenance.tables import open_table
from dv_maintenance.tables.guard import VacuumGuard, VacuumRequest
from dv_maintenance.testing.faults import Call, Fault
from dv_maintenance.testing.faulty_access import injected
from dv_maintenance.testing.history import InterferingEngine
from dv_maintenance.testing.locations import Folder

GOLDEN = [
    "all_deleted_file",
    "bare_blob_dv",
    "branches_tags",
    "compacted",
    "dangling_dv",
    "eq_deletes",
    "expired",
    "lineage",
    "many_dvs_one_puffin",
    "nested_types",
    "overwrites",
    "part_identity",
    "part_transforms",
    "plain",
    "schema_evolved",
    "spec_evolved",
    "v2_upgraded",
    "v2_upgraded_part",
]
FAR = 4_102_444_800_000  # 2100


@pytest.fixture
def engine(iceberg_spark: Any, tmp_path: Path) -> IcebergEngine:
    return IcebergEngine(iceberg_spark, tmp_path)


def purged(engine: IcebergEngine, name: str) -> None:
    """A purge that changes nothing that Spark reads."""
    rows = engine.rows(name)
    report = purge(open_table(str(engine.path(name))), LocalEngine())
    assert report.verified, report.problems
    assert engine.rows(name) == rows
    assert ours(engine, name) == rows


def ours(engine: IcebergEngine, name: str) -> list[str]:
    """As ``IcebergEngine.rows``; only of types that Spark and Arrow make the same objects of."""
    table = open_table(str(engine.path(name)))
    snapshot = table.snapshot()
    if any(str(each.type).startswith(("struct", "list", "map", "timestamp", "decimal")) for each in snapshot.schema):
        return engine.rows(name)
    columns = [*snapshot.schema.names, *snapshot.hidden_columns.names]
    _, batches = read(table, None, columns=columns)
    return sorted(repr(tuple(row.values())) for batch in batches for row in batch.to_pylist())


def vacuumed(engine: IcebergEngine, name: str) -> None:
    """A vacuum of everything but what the references keep."""
    rows = engine.rows(name)
    request = VacuumRequest(
        now=FAR, retention=0, allow_short_retention=True, guard=VacuumGuard(max_deleted_share=1.0), lite=True
    )
    open_table(str(engine.path(name))).vacuum(request)
    assert engine.rows(name) == rows


def no_orphans(engine: IcebergEngine, name: str) -> None:
    then = time.time() - 30 * 86_400
    for path in engine.path(name).rglob("*"):
        os.utime(path, (then, then))
    assert engine.orphans(name) == []


def made(engine: IcebergEngine, name: str) -> None:
    engine.create(name, "id INT, p STRING, v STRING", partitioned="p")
    rows = (f"({number}, '{'ab'[number % 2]}', 'v{number}')" for number in range(40))
    engine.sql(f"INSERT INTO {{t}} VALUES {', '.join(rows)}", name)
    engine.sql("DELETE FROM {t} WHERE id % 3 = 0", name)


def test_spark_goes_on(engine: IcebergEngine) -> None:
    """One table through all of it, so that each statement meets what we left."""
    made(engine, "t")
    purged(engine, "t")
    engine.sql("UPDATE {t} SET v = 'new' WHERE id % 5 = 1", "t")
    purged(engine, "t")
    # Ours carries over what Spark deletes while we rewrite.
    engine.sql("DELETE FROM {t} WHERE id IN (2, 4)", "t")
    gone = InterferingEngine(LocalEngine(), lambda: engine.sql("DELETE FROM {t} WHERE id IN (5, 7, 8)", "t"))
    rows = engine.rows("t")
    assert purge(open_table(str(engine.path("t"))), gone).verified
    left = [row for row in rows if row.split(",")[0] not in {"(5", "(7", "(8"}]
    assert engine.rows("t") == left
    assert len(left) == len(rows) - 3
    # Ours deletes, Spark reads and deletes from the same file.
    delete(open_table(str(engine.path("t"))), LocalEngine(), "id = 10")
    engine.sql("DELETE FROM {t} WHERE id = 11", "t")
    assert not {row.split(",")[0] for row in engine.rows("t")} & {"(10", "(11"}
    vacuumed(engine, "t")
    rows = engine.rows("t")
    engine.rewrite("t")
    assert engine.rows("t") == rows
    engine.expire("t")
    assert engine.rows("t") == rows
    no_orphans(engine, "t")


@pytest.mark.deep
@pytest.mark.parametrize("name", GOLDEN)
def test_golden_tables(engine: IcebergEngine, golden: Path, lay: ModuleType, name: str) -> None:
    lay.lay(str(golden / "iceberg" / name), str(engine.place / name))
    purged(engine, name)
    first = open_table(str(engine.path(name))).snapshot().schema.names[0]
    engine.sql(f"DELETE FROM {{t}} WHERE abs(hash({first})) % 7 = 3", name)
    purged(engine, name)
    vacuumed(engine, name)
    rows = engine.rows(name)
    engine.rewrite(name)
    assert engine.rows(name) == rows
    engine.expire(name)
    assert engine.rows(name) == rows
    if name != "expired":  # which has three of its own
        no_orphans(engine, name)


class At:
    """Runs something at one storage call of ours. ``calls``: how many there were."""

    def __init__(self, number: int, act: Callable[[], object]) -> None:
        self.number, self.act, self.calls = number, act, 0

    def fault(self, call: Call) -> Fault | None:
        self.calls += 1
        if self.calls == self.number:
            self.act()
        return None

    def done(self, call: Call) -> None:
        """Nothing more to it."""


@pytest.mark.deep
def test_a_delete_at_every_call_of_a_purge(engine: IcebergEngine) -> None:
    """It is never lost, and neither is any other row."""
    made(engine, "t")
    rows = engine.rows("t")
    left = [row for row in rows if int(row[1:].split(",")[0]) % 7 != 2]
    assert 0 < len(left) < len(rows)
    folder = Folder(engine.path("t"))
    folder.save()
    number, script = 0, At(-1, list)
    while number <= script.calls or number == 1:
        number += 1
        script = At(number, lambda: engine.sql("DELETE FROM {t} WHERE id % 7 = 2", "t"))
        with injected(script):
            assert purge(open_table(str(engine.path("t"))), LocalEngine(1)).verified
        assert engine.rows("t") == (left if number <= script.calls else rows), number
        folder.reset()


# -- random histories --------------------------------------------------------------------------------------------------


def statements(rng: random.Random) -> dict[str, Callable[[], str]]:
    def some() -> str:
        return f"id % {rng.randint(3, 9)} = {rng.randint(0, 2)}"

    def values() -> str:
        rows = ((rng.randint(0, 99), "abc"[rng.randrange(3)], rng.randint(0, 9)) for _ in range(rng.randint(1, 8)))
        return ", ".join(f"({number}, '{part}', 'n{word}')" for number, part, word in rows)

    def keys() -> str:
        return f"SELECT id, min(p) p, min(v) v FROM VALUES {values()} AS s(id, p, v) GROUP BY id"

    return {
        "insert": lambda: f"INSERT INTO {{t}} (id, p, v) VALUES {values()}",
        "delete": lambda: f"DELETE FROM {{t}} WHERE {some()}",
        "part": lambda: f"DELETE FROM {{t}} WHERE p = '{'abc'[rng.randrange(3)]}' AND {some()}",
        "update": lambda: f"UPDATE {{t}} SET v = concat(v, 'x') WHERE {some()}",
        "merge": lambda: (
            f"MERGE INTO {{t}} USING ({keys()}) s ON {{t}}.id = s.id "
            "WHEN MATCHED AND s.id % 2 = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET v = s.v "
            "WHEN NOT MATCHED THEN INSERT (id, p, v) VALUES (s.id, s.p, s.v)"
        ),
    }


def history(engine: IcebergEngine, name: str, seed: int, length: int) -> None:
    rng = random.Random(seed)
    made(engine, name)
    texts, evolved = statements(rng), 0
    for _ in range(length):
        act = rng.choice([*texts, *texts, "purge", "purge", "maintain", "vacuum", "meanwhile", "rewrite", "evolve"])
        if act in texts:
            engine.sql(texts[act](), name)
        elif act == "purge":
            purged(engine, name)
        elif act == "maintain":
            rows = engine.rows(name)
            assert maintain(open_table(str(engine.path(name))), LocalEngine()).verified
            assert engine.rows(name) == rows
        elif act == "vacuum":
            vacuumed(engine, name)
        elif act == "rewrite":
            engine.rewrite(name)
        elif act == "evolve":
            evolved += 1
            engine.sql(f"ALTER TABLE {{t}} ADD COLUMN c{evolved} INT", name)
        else:
            condition = f"id % {rng.randint(3, 9)} = 1"
            doomed = {
                row.split(",")[0] for row in map(repr, engine.sql(f"SELECT id FROM {{t}} WHERE {condition}", name))
            }
            rows = engine.rows(name)
            engine.sql(f"DELETE FROM {{t}} WHERE id % {rng.randint(4, 9)} = 2", name)
            rows = engine.rows(name)
            gone = InterferingEngine(
                LocalEngine(), lambda text=condition: engine.sql(f"DELETE FROM {{t}} WHERE {text}", name)
            )
            assert purge(open_table(str(engine.path(name))), gone).verified
            if gone.runs:
                assert engine.rows(name) == [row for row in rows if row.split(",")[0] not in doomed]
    purged(engine, name)
    assert ours(engine, name) == engine.rows(name)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(10))
def test_random_histories(engine: IcebergEngine, seed: int) -> None:
    for number in range(5):
        history(engine, f"h{number}", 100 * seed + number, 12)
