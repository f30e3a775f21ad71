"""Lance itself as the judge: what maintenance leaves of its tables, rows, row ids and indices."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from lance import LanceDataset, LanceOperation
from lance.fragment import write_fragments
from lance.indices import IndexConfig
from lance.query import MinHashQuery

from dv_maintenance.dml.delete import delete
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.maintenance.execution.apply import maintain, purge
from dv_maintenance.maintenance.fsck import fsck
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.maintenance.read import read
from dv_maintenance.maintenance.vacuum import vacuum
from dv_maintenance.tables import open_table
from dv_maintenance.tables.guard import VacuumRequest
from dv_maintenance.testing.history import InterferingEngine

HISTORIES = int(os.environ.get("DVM_HISTORIES", "2"))
ROWS, WIDTH, NEAREST = 1200, 8, 20

SCALAR = {
    "BTREE": "id",
    "BITMAP": "kind",
    "LABEL_LIST": "labels",
    "INVERTED": "text",
    "NGRAM": "text",
    "ZONEMAP": "number",
    "BLOOMFILTER": "number",
    "RTREE": "place",
    "MINHASHLSH": "text",
    "JSON": "document",
}
# Name of the kind, with the column if it is not "vector" -> options of the index.
VECTOR: dict[str, dict[str, Any]] = {
    "IVF_FLAT": {},
    "IVF_FLAT bits": {"metric": "hamming"},
    "IVF_PQ vectors": {"num_sub_vectors": 4, "metric": "cosine"},
    "IVF_PQ": {"num_sub_vectors": 4},
    "IVF_SQ": {},
    "IVF_RQ": {},
    "IVF_HNSW_SQ": {},
    "IVF_HNSW_PQ": {"num_sub_vectors": 4},
    "IVF_HNSW_FLAT": {},
}
FILTERS: dict[str, tuple[str, Callable[[int], bool]]] = {
    "BTREE": ("id >= 300 and id < 900", lambda n: 300 <= n < 900),
    "BITMAP": ("kind = 'k3'", lambda n: n % 7 == 3),
    "LABEL_LIST": ("array_has_any(labels, ['l2'])", lambda n: n % 5 == 2),
    "NGRAM": ("contains(text, 'word12')", lambda n: "word12" in f"word{n % 50}"),
    "ZONEMAP": ("number = 999", lambda n: n * 3 == 999),
    "BLOOMFILTER": ("number = 999", lambda n: n * 3 == 999),
    "RTREE": (
        "st_intersects(place, ST_GeomFromText('POLYGON((0 0, 200 0, 200 90, 0 90, 0 0))'))",
        lambda n: n <= 200 and n % 100 <= 90,
    ),
    "JSON": ("json_get_int(document, 'a') = 3", lambda n: n % 17 == 3),
}


def rows(first: int, count: int) -> pa.Table:
    numbers = range(first, first + count)
    draw = np.random.default_rng(first)
    vectors, more = draw.normal(size=count * WIDTH).astype(np.float32), draw.normal(size=(count, 2, WIDTH))
    bits = draw.integers(0, 256, count * WIDTH).astype(np.uint8)
    place = [{"x": float(n), "y": float(n % 100)} for n in numbers]
    point = pa.struct([pa.field("x", pa.float64(), False), pa.field("y", pa.float64(), False)])
    table = pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "kind": [f"k{n % 7}" for n in numbers],
            "labels": [[f"l{n % 5}", f"m{n % 3}"] for n in numbers],
            "text": [f"word{n % 50} and others" for n in numbers],
            "number": pa.array([n * 3 for n in numbers], pa.int64()),
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors), WIDTH),
            "bits": pa.FixedSizeListArray.from_arrays(pa.array(bits), WIDTH),
            "vectors": pa.array(more.tolist(), pa.list_(pa.list_(pa.float32(), WIDTH))),
            "document": [f'{{"a": {n % 17}}}' for n in numbers],
            "place": pa.array(place, point),
        }
    )
    known = {"document": "arrow.json", "place": "geoarrow.point"}
    fields = [
        each.with_metadata({"ARROW:extension:name": known[each.name]}) if each.name in known else each
        for each in table.schema
    ]
    return table.cast(pa.schema(fields))


def content(dataset: Any) -> list[tuple[Any, ...]]:
    """Every row, without any index and in no order; with its id where ids are stable."""
    found = dataset.scanner(use_scalar_index=False, with_row_id=dataset.has_stable_row_ids).to_table()
    return sorted(tuple(map(repr, row.values())) for row in found.to_pylist())


def check_search(dataset: Any, kind: str, name: str) -> None:
    """A search by the index finds what is there, and as many as were asked for."""
    live = dataset.scanner(columns=["id"], use_scalar_index=False).to_table()["id"].to_pylist()
    if kind in VECTOR:
        for query in queries(kind, 3):
            found = nearest(dataset, kind, query)
            assert len(set(found)) == NEAREST
            assert set(found) <= set(live)
    elif kind == "MINHASHLSH":
        found = dataset.to_table(columns=["id"], nearest=MinHashQuery("word7 and others", "text"), limit=5)
        assert len(found) == 5
        assert {n % 50 for n in found["id"].to_pylist()} == {7}
    elif kind == "INVERTED":
        found = dataset.to_table(columns=["id", "_score"], full_text_query="word3")["id"].to_pylist()
        assert sorted(found) == sorted(n for n in live if n % 50 == 3)
        best = dataset.to_table(columns=["id", "_score"], full_text_query="word3", limit=5)
        assert len(best) == 5
    else:
        condition, holds = FILTERS[kind]
        found = dataset.to_table(columns=["id"], filter=condition)["id"].to_pylist()
        assert sorted(found) == sorted(filter(holds, live))
        some = dataset.to_table(columns=["id"], filter=condition, limit=5)["id"].to_pylist()
        assert len(some) == min(5, len(found))
    assert dataset.stats.index_stats(name)["num_unindexed_rows"] == 0


def queries(kind: str, number: int) -> Iterator[Any]:
    draw = np.random.default_rng(11)
    column = column_of(kind)
    for _ in range(number):
        if column == "bits":
            yield draw.integers(0, 256, WIDTH).astype(np.uint8)
        else:
            yield draw.normal(size=WIDTH if column == "vector" else (2, WIDTH)).astype(np.float32)


def column_of(kind: str) -> str:
    return kind.partition(" ")[2] or "vector"


def nearest(dataset: Any, kind: str, query: Any, **options: Any) -> list[int]:
    wanted = {"column": column_of(kind), "q": query, "k": NEAREST, "nprobes": 4, **options}
    found: list[int] = dataset.to_table(columns=["id", "_distance"], nearest=wanted)["id"].to_pylist()
    return found


def recall(dataset: Any, kind: str) -> float:
    """The share of the nearest rows that the index finds."""
    hits = [
        len(set(nearest(dataset, kind, query)) & set(nearest(dataset, kind, query, use_index=False)))
        for query in queries(kind, 25)
    ]
    return sum(hits) / len(hits) / NEAREST


@pytest.mark.parametrize(
    ("kind", "stable", "raced"),
    [
        # Each kind of index once by default, each time with the next of the four.
        pytest.param(
            *case,
            id="-".join((case[0], "stable" if case[1] else "address", "raced" if case[2] else "alone")),
            marks=() if number % 4 == number // 4 % 4 else pytest.mark.deep,
        )
        for number, case in enumerate(product([*SCALAR, *VECTOR], (False, True), (False, True)))
    ],
)
def test_a_search_is_complete_after_a_purge(
    pylance: ModuleType, tmp_path: Path, kind: str, stable: bool, raced: bool
) -> None:
    place = str(tmp_path / "table")
    dataset = pylance.write_dataset(rows(0, ROWS), place, max_rows_per_file=200, enable_stable_row_ids=stable)
    if kind == "JSON":
        config = IndexConfig("json", {"target_index_type": "bitmap" if stable else "btree", "path": "$.a"})
        dataset.create_scalar_index(SCALAR[kind], config, name="it")
    elif kind in SCALAR:
        dataset.create_scalar_index(SCALAR[kind], kind, name="it")
    else:
        dataset.create_index(column_of(kind), kind.partition(" ")[0], name="it", num_partitions=4, **VECTOR[kind])
    dataset.delete("id % 4 = 1 or (id >= 450 and id < 580)")
    before = content(dataset)
    recalled = recall(pylance.dataset(place), kind) if kind in VECTOR else 1.0

    def others() -> None:
        pylance.dataset(place).delete("id % 10 = 2")

    engine = InterferingEngine(LocalEngine(), others if raced else lambda: None)
    report = purge(open_table(place), engine)
    assert report.verified, report.problems
    assert sum(step.rows_purged for step in report.steps) == ROWS - len(before)
    dataset = pylance.dataset(place)
    if raced:
        assert sum(step.rows_carried for step in report.steps) > 0
        gone = {repr(n) for n in range(ROWS) if n % 10 == 2}
        before = [row for row in before if row[0] not in gone]
    assert content(dataset) == before
    check_search(dataset, kind, "it")
    # Training draws samples, so two trainings of one index differ by as much. Where nothing is trained, Lance's own
    # compaction changes distances of IVF_RQ by their rounding, and with them one or two of 500 rows.
    missed = 0.03 if stable or raced else 0.005 if kind == "IVF_RQ" else 0
    assert kind not in VECTOR or recall(dataset, kind) >= recalled - missed
    dataset.validate()


LINEAGE = ["_rowid", "_row_created_at_version", "_row_last_updated_at_version"]


def lineage(dataset: Any) -> list[tuple[Any, ...]]:
    found = dataset.scanner(columns=["id", "number", *LINEAGE], use_scalar_index=False).to_table()
    return sorted(tuple(row.values()) for row in found.to_pylist())


@pytest.mark.parametrize("raced", [False, True])
def test_row_lineage_in_data_files_survives(pylance: ModuleType, tmp_path: Path, raced: bool) -> None:
    """Row ids, and the versions that created and last updated each row, in hidden columns of data files."""
    place = str(tmp_path / "table")
    dataset = pylance.write_dataset(rows(0, ROWS), place, max_rows_per_file=200, enable_stable_row_ids=True)
    dataset.update_config({"lance.row_lineage.spill": "true", "lance.row_lineage.inline_max_bytes": "16"})
    dataset = pylance.dataset(place)
    dataset.create_scalar_index("id", "BTREE", name="by_id")
    dataset.update({"number": "number + 1"}, where="id % 7 = 3")
    dataset.delete("id % 5 = 1")
    dataset.optimize.compact_files(target_rows_per_fragment=500)
    pylance.write_dataset(rows(ROWS, 100), place, mode="append")
    dataset = pylance.dataset(place)
    dataset.update({"number": "number + 1"}, where="id % 13 = 3")
    dataset.delete("id % 11 = 1 or id < 40")
    table = open_table(place)
    flags = table.snapshot().manifest.reader_flags  # type: ignore[attr-defined]
    assert flags & 2048
    before = lineage(pylance.dataset(place))

    def others() -> None:
        pylance.dataset(place).delete("id % 17 = 2")

    report = purge(table, InterferingEngine(LocalEngine(), others if raced else lambda: None))
    assert report.verified, report.problems
    if raced:
        assert sum(step.rows_carried for step in report.steps) > 0
        before = [row for row in before if row[0] % 17 != 2]
    assert lineage(pylance.dataset(place)) == before
    check_search(pylance.dataset(place), "BTREE", "by_id")

    delete(table, LocalEngine(), "id >= 600 and id < 640")
    before = [row for row in before if not 600 <= row[0] < 640]
    assert lineage(pylance.dataset(place)) == before
    vacuum(table, VacuumRequest(retention=0, allow_short_retention=True))
    dataset = pylance.dataset(place)
    assert lineage(dataset) == before
    dataset.validate()
    dataset.update({"number": "0"}, where="id = 800")
    assert pylance.dataset(place).to_table(filter="number = 0 and id = 800").num_rows == 1


# -- fragments that share data files ------------------------------------------------------------------------------


def append_twice(place: str, new: pa.Table) -> None:
    """As a writer does that repeats the commit of its fragments. Lance accepts it: the rows are there twice."""
    fragments = write_fragments(new, place, max_rows_per_file=100)
    for _ in range(2):
        LanceDataset.commit(place, LanceOperation.Append(fragments), read_version=LanceDataset(place).version)


def shared(place: str) -> int:
    """How many fragments have a data file that another one has."""
    names = [each.metadata.files[0].path for each in LanceDataset(place).get_fragments()]
    return sum(names.count(name) > 1 for name in names)


@pytest.mark.parametrize("raced", [False, True])
@pytest.mark.parametrize("stable", [False, True])
def test_fragments_that_share_data_files(pylance: ModuleType, tmp_path: Path, stable: bool, raced: bool) -> None:
    place = str(tmp_path / "table")
    pylance.write_dataset(rows(0, 200), place, max_rows_per_file=100, enable_stable_row_ids=stable)
    append_twice(place, rows(200, 200))
    table = open_table(place)
    assert shared(place) == 4

    report = delete(table, LocalEngine(), "id = 7 or id = 230 or id >= 300 and id < 360")
    assert report.rows_deleted == 1 + 2 * 61
    pylance.dataset(place).delete("id = 250")
    dataset = pylance.dataset(place)
    dataset.delete(f"id = 390 and _rowaddr < {dataset.get_fragments()[-1].fragment_id << 32}")
    before = content(dataset := pylance.dataset(place))
    ids = sorted(dataset.to_table()["id"].to_pylist())
    assert (ids.count(250), ids.count(390), ids.count(391)) == (0, 1, 2)
    snapshot = table.snapshot()
    assert len(set(snapshot.files["path"].to_pylist())) == snapshot.files.num_rows == 6
    assert fsck(table, deep=True).clean
    _, batches = read(table, columns=["id"])
    assert sorted(row for batch in batches for row in batch["id"].to_pylist()) == ids

    def others() -> None:
        pylance.dataset(place).delete("id = 260")

    report = purge(table, InterferingEngine(LocalEngine(), others if raced else lambda: None))
    assert report.verified, report.problems
    before = [row for row in before if not raced or "260" not in row]
    assert content(pylance.dataset(place)) == before
    vacuum(table, VacuumRequest(retention=0, allow_short_retention=True))
    pylance.dataset(place).validate()
    assert content(pylance.dataset(place)) == before


def test_a_file_that_another_fragment_shares_stays(pylance: ModuleType, tmp_path: Path) -> None:
    """A plan from before the second commit finds the fragment under another name, and plans again."""
    place = str(tmp_path / "table")
    pylance.write_dataset(rows(0, 100), place)
    fragments = write_fragments(rows(100, 100), place)
    LanceDataset.commit(place, LanceOperation.Append(fragments), read_version=1)
    pylance.dataset(place).delete("id < 50 or id = 150")
    table = open_table(place)

    def again() -> None:
        LanceDataset.commit(place, LanceOperation.Append(fragments), read_version=LanceDataset(place).version)

    purge(table, InterferingEngine(LocalEngine(), again))
    dataset = pylance.dataset(place)
    expected, ids = content(dataset), dataset.to_table()["id"].to_pylist()
    assert (ids.count(150), ids.count(151)) == (1, 2)
    assert purge(table, LocalEngine()).verified
    vacuum(table, VacuumRequest(retention=0, allow_short_retention=True))
    dataset = pylance.dataset(place)
    assert content(dataset) == expected
    assert not any(table.snapshot().files["deleted_rows"].to_pylist())
    dataset.validate()


# -- random histories ---------------------------------------------------------------------------------------------


class History:
    """What a user of Lance does to a table."""

    def __init__(self, pylance: ModuleType, place: str, seed: int) -> None:
        self.lance, self.place, self.random = pylance, place, random.Random(seed)
        self.next, self.columns = 400, 0
        pylance.write_dataset(
            rows(0, 400),
            place,
            max_rows_per_file=100,
            enable_stable_row_ids=bool(seed % 2),
            enable_v2_manifest_paths=seed % 3 > 0,
        )
        if seed % 4 == 0:
            self.dataset.create_scalar_index("id", "BTREE", name="by_id")

    @property
    def dataset(self) -> Any:
        return self.lance.dataset(self.place)

    def step(self) -> None:
        self.random.choice(
            [
                self.append,
                self.append_twice,
                self.delete,
                self.delete,
                self.delete,
                self.update,
                self.merge,
                self.add_column,
            ]
        )()

    def append(self) -> None:
        self.lance.write_dataset(self.new_rows(), self.place, mode="append")

    def append_twice(self) -> None:
        append_twice(self.place, self.new_rows())

    def new_rows(self) -> pa.Table:
        count = self.random.randint(1, 120)
        new = rows(self.next, count)
        for number in range(self.columns):
            new = new.append_column(f"extra{number}", pa.array([number] * count, pa.int64()))
        self.next += count
        return new

    def delete(self) -> None:
        every = self.random.choice([2, 3, 7, 19])
        start = self.random.randrange(self.next)
        self.dataset.delete(f"id % {every} = {start % every} and id >= {start} and id < {start + 150}")

    def update(self) -> None:
        start = self.random.randrange(self.next)
        self.dataset.update({"number": "number + 1"}, where=f"id >= {start} and id < {start + 20}")

    def merge(self) -> None:
        start = self.random.randrange(self.next)
        new = rows(start, 30)
        for number in range(self.columns):
            new = new.append_column(f"extra{number}", pa.array([-number] * 30, pa.int64()))
        self.dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(new)
        self.next = max(self.next, start + 30)

    def add_column(self) -> None:
        if self.columns < 3:
            self.dataset.add_columns({f"extra{self.columns}": "id * 2"})
            self.columns += 1


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_histories_with_purges_in_between(pylance: ModuleType, tmp_path: Path, seed: int) -> None:
    history = History(pylance, str(tmp_path / "table"), seed)
    draw = history.random
    for _ in range(6):
        for _ in range(draw.randint(1, 4)):
            history.step()
        before = content(history.dataset)
        table = open_table(history.place)
        if draw.random() < 0.5:
            report = purge(table, LocalEngine())
            assert not any(each is not None for each in table.snapshot().files["dv_id"].to_pylist())
        else:
            policy = Policy(max_deleted_ratio=draw.choice([0, 0.05, 0.3]), min_file_size=draw.choice([None, 0]))
            report = maintain(table, LocalEngine(), policy)
        assert report.verified, report.problems
        dataset = history.dataset
        assert content(dataset) == before
        dataset.validate()
        if draw.random() < 0.3:
            vacuum(table, VacuumRequest(retention=0, allow_short_retention=True))
            assert content(history.dataset) == before
