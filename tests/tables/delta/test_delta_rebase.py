"""Rewrites that others raced with: no row lost, none back, and the work is kept wherever it can be."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.readers import with_delta_spark, with_deltalake

from dv_maintenance.dv import DeletionVector, DvDescriptor
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import ConflictError
from dv_maintenance.maintenance.read import read
from dv_maintenance.storage import Storage
from dv_maintenance.tables import open_table
from dv_maintenance.tables.delta.commit.live_file import LiveFile
from dv_maintenance.tables.delta.commit.rewrites import commit_replacements
from dv_maintenance.tables.delta.load import load_snapshot
from dv_maintenance.tables.delta.log.bulk import dv_id
from dv_maintenance.tables.delta.log.segment import read_commit
from dv_maintenance.tables.delta.rows.tasks import dv_ref, rewrite_tasks
from dv_maintenance.tables.delta.snapshot import DeltaSnapshot
from dv_maintenance.tables.dv_codecs import load
from dv_maintenance.tables.model import FileKey
from dv_maintenance.tables.table import Replacement
from dv_maintenance.tables.work import RewriteBin
from dv_maintenance.testing.delta_builder import DeltaBuilder

OPTIMIZE = {"name": "OPTIMIZE", "parameters": {"predicate": []}}
SCHEMA = pa.schema([("id", pa.int64())])
ROWS, FILES = 80, 4


class Others:
    """Other writers, and what the table must hold after each of them. Four files of 20 rows, ids in order."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.builder = DeltaBuilder(place).create(SCHEMA)
        self.builder.append(pa.table({"id": range(ROWS)}, schema=SCHEMA), files=FILES)
        self.live = set(range(ROWS))
        self.next_id = 1000

    def delete(self, ids: set[int]) -> None:
        """By deletion vectors; files without live rows are removed."""
        if ids & self.live:
            self.builder.delete(lambda rows: pc.is_in(rows["id"], pa.array(sorted(ids), pa.int64())))
            self.live -= ids

    def update(self, ids: set[int]) -> None:
        """Rows out by deletion vectors, as many new ones in."""
        touched = ids & self.live
        self.delete(ids)
        self.append(touched)

    def append(self, ids: set[int]) -> None:
        """As many new rows."""
        if count := len(ids):
            new = range(self.next_id, self.next_id + count)
            self.next_id += count
            self.builder.append(pa.table({"id": new}, schema=SCHEMA))
            self.live |= set(new)

    def copy_on_write(self, ids: set[int]) -> None:
        """Files with these rows are replaced by new ones without them, as engines that write no DVs delete."""
        chosen = [file for file in self.files() if file.held & ids]
        left = sorted(set[int]().union(*(file.held for file in chosen)) - ids)
        if chosen:
            self.builder.commit([file.log.remove(1, data_change=True) for file in chosen])
            self.live -= set().union(*(file.held for file in chosen))
        if left:
            self.builder.append(pa.table({"id": left}, schema=SCHEMA))
            self.live |= set(left)

    def compact(self, ids: set[int]) -> None:
        """Files with these rows become one."""
        base = load_snapshot(self.builder.storage)
        chosen = [file.log.key for file in self.files() if file.held & ids]
        if chosen:
            part = rewritten(base, self.builder.storage, [chosen], 1 << 30)
            assert commit_replacements(self.builder.storage, base, part, operation=OPTIMIZE).version

    def undelete(self, ids: set[int]) -> None:
        """Files with these rows get all of their deleted ones back, as a restore does it."""
        for file in self.files():
            if file.log.dv and file.held & ids:
                stats = f'{{"numRecords": {len(file.physical)}}}'
                add = {"path": file.log.path, "size": file.log.size, "partitionValues": {}, "modificationTime": 1}
                actions = [file.log.remove(1, data_change=True), {"add": {**add, "dataChange": True, "stats": stats}}]
                self.builder.commit(actions)
                self.live |= file.physical

    def files(self) -> Iterator[LiveIds]:
        storage = self.builder.storage
        for row in load_snapshot(storage).files.to_pylist():
            log = LiveFile.from_row(row)
            ids = pq.read_table(Path(self.place) / row["path"])["id"].to_pylist()
            dv = DeletionVector.empty() if log.dv is None else load(dv_ref(storage, log.dv), storage.get_range)
            yield LiveIds(log, {number for at, number in enumerate(ids) if at not in dv}, set(ids))


@dataclass(frozen=True)
class LiveIds:
    log: LiveFile
    held: set[int]
    physical: set[int]


def rewritten(base: DeltaSnapshot, storage: Storage, groups: list[list[FileKey]], target: int) -> list[Replacement]:
    bins = [RewriteBin(f"r{number}", "", tuple(keys)) for number, keys in enumerate(groups)]
    results = LocalEngine().run(rewrite_tasks(storage, base, bins, target), storage_options=storage.options)
    return [
        Replacement(
            one.id,
            "",
            one.inputs,
            result.outputs,
            tuple(rows - gone for rows, gone in zip(result.source_rows, result.source_purged, strict=True)),
        )
        for one, result in zip(bins, results, strict=True)
    ]


class Raced(Storage):
    """Lets others in right before each put of a commit."""

    def __init__(self, place: str, others: list[Callable[[], None]]) -> None:
        super().__init__(place)
        self.others = list(others)

    def create(self, path: str, data: bytes) -> None:
        if path.startswith("_delta_log") and self.others:
            self.others.pop(0)()
        super().create(path, data)


def ids_of(place: str) -> set[int]:
    _, batches = read(open_table(place))
    found = [number for batch in batches for number in batch["id"].to_pylist()]
    assert len(found) == len(set(found)), "a row came twice"
    return set(found)


def no_orphans(place: str) -> None:
    """Every DV file is one that the log names, then or now."""
    storage = Storage(place)
    named = {
        DvDescriptor.from_json(body["deletionVector"]).relative_path()
        for version in range(load_snapshot(storage).version + 1)
        for action in read_commit(storage, version)
        for body in action.values()
        if isinstance(body, dict) and (body.get("deletionVector") or {}).get("storageType") == "u"
    }
    assert {path.name for path in Path(place).glob("*.bin")} <= named


SETS = st.sets(st.integers(0, ROWS - 1), max_size=30) | st.builds(
    lambda start, count: set(range(start, start + count)), st.integers(0, ROWS), st.integers(20, 50)
)
DELETES = ("delete", "update", "copy_on_write", "append")
STEP = st.tuples(st.sampled_from((*DELETES, "compact", "undelete")), SETS)


@settings(max_examples=examples(5), suppress_health_check=list(HealthCheck))
@given(
    before=SETS,
    groups=st.sampled_from([[[0], [1], [2], [3]], [[0, 1, 2, 3]], [[2, 0], [1, 3]], [[3, 1, 2]]]),
    target=st.sampled_from([1, 1 << 30]),
    meanwhile=st.lists(STEP, max_size=4),
    racing=st.lists(STEP, max_size=3),
)
def test_any_interleaving(before: Any, groups: Any, target: int, meanwhile: Any, racing: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = f"{folder}/table"
        others = Others(place)
        others.delete(before)
        base = load_snapshot(Storage(place))
        keys = [file.log.key for file in others.files()]
        chosen = [[keys[at] for at in group if at < len(keys)] for group in groups]
        parts = rewritten(base, others.builder.storage, [group for group in chosen if group], target)
        holds = {part.id: set() for part in parts}
        by_path = {file.log.key: file.held for file in others.files()}
        for part in parts:
            holds[part.id] = set().union(*(by_path[key] for key in part.inputs))
        steps = [
            lambda step=step: getattr(others, step[0])(step[1] & set(range(ROWS))) for step in (*meanwhile, *racing)
        ]
        for step in steps[: len(meanwhile)]:
            step()
        storage = Raced(place, steps[len(meanwhile) :])
        outcome = commit_replacements(storage, base, parts, operation=OPTIMIZE)
        assert ids_of(place) == others.live
        no_orphans(place)
        if {name for name, _ in (*meanwhile, *racing)} <= {"delete", "update", "append"}:
            assert all(not holds[name] & others.live for name in outcome.lost), "finished work is kept"


# -- what is committed -------------------------------------------------------------------------------------------


@pytest.fixture
def others(tmp_path: Path) -> Others:
    """Half of the first file is deleted."""
    made = Others(str(tmp_path / "a table"))
    made.delete(set(range(10)))
    return made


def merged(others: Others) -> tuple[DeltaSnapshot, list[Replacement]]:
    base = load_snapshot(others.builder.storage)
    keys = [file.log.key for file in others.files()]
    return base, rewritten(base, others.builder.storage, [keys], 1 << 30)


def test_new_files_take_over_what_was_deleted(others: Others) -> None:
    base, parts = merged(others)
    others.delete({11, 25, 79})
    outcome = commit_replacements(others.builder.storage, base, parts, operation=OPTIMIZE)
    assert (outcome.committed, outcome.lost) == (("r0",), ())
    (rebased,) = outcome.rebased
    assert (rebased.id, rebased.deleted, len(rebased.inputs)) == ("r0", (3,), 4)
    actions = read_commit(others.builder.storage, outcome.version or 0)
    (add,) = [action["add"] for action in actions if "add" in action]
    assert (add["dataChange"], add["deletionVector"]["cardinality"]) == (False, 3)
    stats = json.loads(add["stats"])
    assert (stats["numRecords"], stats["tightBounds"]) == (70, False)
    # A remove takes out the file with the DV that it has by now, not with the one that was read.
    removes = [action["remove"] for action in actions if "remove" in action]
    removed = {FileKey(body["path"], dv_id(body.get("deletionVector"))) for body in removes}
    assert removed == set(rebased.inputs) != set(parts[0].inputs)
    metrics = actions[0]["commitInfo"]["operationMetrics"]
    assert (metrics["numDeletionVectorsRemoved"], metrics["numDeletionVectorsAdded"]) == ("3", "1")
    assert ids_of(others.place) == others.live


def test_other_readers_see_the_same(others: Others, delta_spark: Any) -> None:
    base, parts = merged(others)
    others.delete(set(range(11, 75, 3)))
    assert commit_replacements(others.builder.storage, base, parts, operation=OPTIMIZE).rebased
    assert set(with_deltalake(Path(others.place))["id"].to_pylist()) == others.live
    assert set(with_delta_spark(delta_spark, Path(others.place))["id"].to_pylist()) == others.live


def test_large_dvs_are_files_and_small_ones_are_not(tmp_path: Path) -> None:
    builder = DeltaBuilder(str(tmp_path / "large")).create(SCHEMA)
    builder.append(pa.table({"id": range(5000)}, schema=SCHEMA))
    for spread, storage_type in ((1000, "i"), (3, "u")):
        base = load_snapshot(builder.storage)
        (row,) = base.files.to_pylist()
        parts = rewritten(base, builder.storage, [[FileKey(row["path"], row["dv_id"])]], 1 << 30)
        rows = sorted(ids_of(builder.storage.uri))
        builder.delete(lambda batch, gone=rows[::spread]: pc.is_in(batch["id"], pa.array(gone, pa.int64())))
        outcome = commit_replacements(builder.storage, base, parts, operation=OPTIMIZE)
        (dv,) = load_snapshot(builder.storage).files["dv"].to_pylist()
        assert (outcome.version, dv["storage_type"]) == (base.version + 2, storage_type)
        assert ids_of(builder.storage.uri) == set(rows) - set(rows[::spread])


def test_a_table_that_takes_no_more_dvs_gets_none(others: Others) -> None:
    base, parts = merged(others)
    others.delete({30})
    metadata = base.metadata
    off = {**metadata.configuration, "delta.enableDeletionVectors": "false"}
    others.builder.commit([{"metaData": replace(metadata, configuration=off).to_json()}])
    outcome = commit_replacements(others.builder.storage, base, parts, operation=OPTIMIZE)
    assert (outcome.version, outcome.lost) == (None, ("r0",))
    assert "changed its DV" in outcome.reason


def test_two_rewrites_of_the_same_files_do_not_pile_up(others: Others) -> None:
    """The second would leave a file full of deleted rows."""
    base, parts = merged(others)
    others.compact(set(range(20, 40)))
    outcome = commit_replacements(others.builder.storage, base, parts, operation=OPTIMIZE)
    assert (outcome.version, outcome.lost) == (None, ("r0",))
    assert "another writer rewrote" in outcome.reason


def test_a_lost_race_leaves_no_dv_files(tmp_path: Path) -> None:
    builder = DeltaBuilder(str(tmp_path / "busy")).create(SCHEMA)
    builder.append(pa.table({"id": range(5000)}, schema=SCHEMA))
    base = load_snapshot(builder.storage)
    (row,) = base.files.to_pylist()
    parts = rewritten(base, builder.storage, [[FileKey(row["path"])]], 1 << 30)
    left = iter(range(0, 5000, 500))

    def delete() -> None:
        low = next(left)
        wanted = pa.array(range(low, low + 500, 2), pa.int64())
        builder.delete(lambda batch: pc.is_in(batch["id"], wanted), style="inline")

    delete()
    with pytest.raises(ConflictError):
        storage = Raced(builder.storage.uri, [delete] * 3)
        commit_replacements(storage, base, parts, operation=OPTIMIZE, max_attempts=3)
    assert not list((tmp_path / "busy").glob("*.bin"))
