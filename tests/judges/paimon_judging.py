"""What a Paimon table is to Paimon's own engine, and to us."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest
from support.paimon_engine import PaimonEngine, Row, plain_rows
from support.tables import paimon_table as opened

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.maintenance.health import health
from dv_maintenance.maintenance.read import read
from dv_maintenance.storage import Storage
from dv_maintenance.tables.dv_codecs import load
from dv_maintenance.tables.work import DvRef

__all__ = [
    "ALL_DELETED_FILES",
    "History",
    "Intruder",
    "in_order",
    "judge_files",
    "judge_rows",
    "opened",
    "our_rows",
    "same",
    "stored_files",
]

ALL_DELETED_FILES = {"compaction.delete-ratio-threshold": "0", "compaction.min.file-num": "2"}
"""Options by which Paimon's compaction takes every file with a deletion vector."""


T = TypeVar("T")


def our_rows(path: Path, version: int | None = None, columns: list[str] | None = None) -> list[Row]:
    schema, batches = read(opened(path), version, columns)
    return plain_rows(pa.Table.from_batches(batches, schema))


def in_order(rows: list[Row]) -> list[str]:
    return sorted(map(repr, rows))


def same(one: list[Row], other: list[Row]) -> None:
    """But for their order."""
    assert in_order(one) == in_order(other)


def judge_rows(engine: PaimonEngine, path: Path, version: int | None = None) -> list[Row]:
    theirs = engine.rows(path, version)
    same(our_rows(path, version), theirs)
    return theirs


def judge_files(engine: PaimonEngine, path: Path, version: int) -> None:
    """Files, levels, deletion vectors and what health counts, against what Paimon's scan and index handler say."""
    table = opened(path)
    snapshot = table.snapshot(version)
    theirs = engine.files(path, version)
    ours: dict[str, dict[str, Any]] = {}
    for row in [*snapshot.files.to_pylist(), *snapshot.hidden.to_pylist()]:
        ours[row["file_name"]] = {"rows": row["physical_rows"], "level": row["level"], "size": row["size"]}
        if row["dv_id"] is not None:
            uri = table.storage.uri_of(row["dv_file"])
            ref = DvRef("paimon", row["deleted_rows"], row["dv_length"], uri, row["dv_offset"])
            dv = load(ref, table.storage.get_range, rows=row["physical_rows"])
            ours[row["file_name"]]["deleted"] = dv.positions().tolist()
    assert ours == theirs
    # Paimon 1.4 leaves some in primary-key tables (apache/paimon#8778).
    assert snapshot.options.primary_key or not snapshot.dangling
    hidden = set(snapshot.hidden["file_name"].to_pylist())
    seen = [file for name, file in theirs.items() if name not in hidden]
    counts = health(snapshot).counts
    assert counts.files == len(seen)
    assert counts.physical_rows == sum(file["rows"] for file in seen)
    assert counts.files_with_dv == sum("deleted" in file for file in seen)
    assert counts.deleted_rows == sum(len(file.get("deleted", ())) for file in seen)


class History:
    """What happens to a table of the columns id, pt and v, of the engine's doing and of ours: an append table, or one
    with a primary key.
    """

    def __init__(
        self, engine: PaimonEngine, path: Path, draw: random.Random, *, keyed: bool, options: Mapping[str, str]
    ) -> None:
        self.engine, self.path, self.draw, self.keyed = engine, path, draw, keyed
        self.tags: list[str] = []
        columns = {"id": "INT NOT NULL", "pt": "STRING NOT NULL", "v": "STRING"}
        key = ["pt", "id"] if keyed else []
        engine.create(path, columns, partition=["pt"][: draw.randint(int(keyed), 1)], key=key, options=options)
        self._ids = iter(range(100_000))

    def rows(self, count: int) -> Iterator[tuple[int, str, str]]:
        """New ones."""
        for number, _ in zip(self._ids, range(count), strict=False):
            yield number, "ab"[number % 2], f"v{number}"

    def delete_some(self, every: int, rest: int) -> None:
        """As Paimon does: by deletion vectors, or rows that take others back."""
        if self.keyed:
            gone = [row for row in self.engine.rows(self.path) if row["id"] % every == rest]
            self.engine.append(self.path, [list(row.values()) for row in gone], kinds=["-D"] * len(gone))
        else:
            self.engine.delete(self.path, lambda row: row["id"] % every == rest)

    def compact(self) -> None:
        self.engine.compact(self.path, options=ALL_DELETED_FILES)

    def purge(self) -> None:
        if not self.keyed:
            assert purge(opened(self.path), LocalEngine()).verified

    def tag(self) -> None:
        self.tags.append(f"tag{len(self.tags)}")
        self.engine.tag(self.path, self.tags[-1])

    def branch(self) -> None:
        if not (self.path / "branch").is_dir():
            self.tag()
            self.engine.branch(self.path, "side", self.tags[-1])


def stored_files(path: Path) -> set[str]:
    """All files of a table but the hints, which are rewritten."""
    found = (each.relative_to(path).as_posix() for each in path.rglob("*") if each.is_file())
    return {name for name in found if name.rpartition("/")[2] not in {"LATEST", "EARLIEST"}}


class Intruder:
    """Does something once, right before the call to the storage with a certain number."""

    CALLS = (
        *("get", "get_range", "head", "list", "walk", "first_names", "folders"),
        *("open_input", "open_output", "put", "create", "delete"),
    )

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls, self.at, self._lock = 0, -1, threading.Lock()
        self.does: Callable[[], object] | None = None
        for name in self.CALLS:
            monkeypatch.setattr(Storage, name, self._watched(getattr(Storage, name)))

    def _watched(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                self.calls += 1
                does, self.does = (self.does, None) if self.calls == self.at else (None, self.does)
            if does is not None:
                does()
            return method(*args, **kwargs)

        return watched

    def during(self, run: Callable[[], T], at: int, does: Callable[[], object]) -> T:
        self.calls, self.at, self.does = 0, at, does
        try:
            return run()
        finally:
            assert self.does is None or self.at > self.calls, "it never came"
            self.at = -1
