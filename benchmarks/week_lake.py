"""Tables of each format that accidents happen to, and what must be in them afterwards."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance import restore
from dv_maintenance.maintenance.read import read
from dv_maintenance.testing.backends import DeltaBackend, IcebergBackend, LanceBackend, PaimonBackend, TableBackend
from dv_maintenance.testing.delta_builder import DeltaBuilder

__all__ = ["FORMATS", "LakeTable", "Undo"]

FORMATS: dict[str, type[DeltaBackend | LanceBackend | PaimonBackend | IcebergBackend]] = {
    "delta": DeltaBackend,
    "lance": LanceBackend,
    "paimon": PaimonBackend,
    "iceberg": IcebergBackend,
}
# Where a format keeps deletion vectors and what it writes last in a commit.
_DELETION_VECTORS = {
    "delta": "deletion_vector_*.bin",
    "lance": "_deletions/*",
    "paimon": "index/*",
    "iceberg": "data/**/*.puffin",
}
_NEWEST = {
    "delta": "_delta_log/*.json",
    "lance": "_versions/*.manifest",
    "paimon": "snapshot/snapshot-*",
    "iceberg": "metadata/*.metadata.json",
}
# Settings of a table. Half a minute is enough for a writer that has written its files and not committed them yet.
_KEEPS_SECONDS: dict[str, Any] = {
    "delta": {"properties": {"delta.deletedFileRetentionDuration": "interval 30 seconds"}}
}
_KEEPS_A_WEEK: dict[str, Any] = {
    "delta": {"properties": {"delta.deletedFileRetentionDuration": "interval 7 days"}},
    "paimon": {"options": {"snapshot.time-retained": "7 d"}},
}

Undo = Callable[[], None]
"""Ends an accident."""


class LakeTable:
    """Rows have the columns ``id``, ``p`` and ``v``; what ``v`` is follows from the id and from which table it is.

    files, rows : each append writes so many files with so many rows.
    keeps : files that no version needs, for days.
    """

    def __init__(
        self, path: Path, format: str = "delta", *, files: int = 1, rows: int = 5_000, keeps: bool = False
    ) -> None:
        self._settings = (_KEEPS_A_WEEK if keeps else _KEEPS_SECONDS).get(format, {})
        self.path, self.format, self.name = path, format, path.name
        self.files, self.rows = files, rows
        self._word = "first"
        self._deletes = 0
        self._alive = np.zeros(0, bool)
        self._create()

    def _create(self) -> None:
        self._backend = self._backend_at(self.path)
        self._backend.create()
        self.append()
        self.append()

    def _backend_at(self, path: Path) -> TableBackend:
        return FORMATS[self.format](str(path), **self._settings)

    @property
    def version(self) -> int:
        return self._backend.open().version()

    @property
    def commits(self) -> int:
        return len(self._backend.open().history())

    # -- what writers do -------------------------------------------------------------------------------------------

    def append(self) -> None:
        ids = np.arange(len(self._alive), len(self._alive) + self.files * self.rows)
        values = self._values(ids)
        if self.format == "delta":  # many rows without an object for each
            columns = {"id": ids, "p": pa.repeat("p", len(ids)), "v": values}
            DeltaBuilder(str(self.path)).append(pa.table(columns), files=self.files)
        else:
            rows = [(each, "p", value) for each, value in zip(ids.tolist(), values.to_pylist(), strict=True)]
            self._backend.append("p", rows)
        self._alive = np.append(self._alive, np.ones(len(ids), bool))

    def delete(self) -> None:
        """A fifth of the rows of each file, by deletion vectors: more than any policy leaves alone."""
        rest = self._deletes % 5
        gone = np.flatnonzero(self._alive & (np.arange(len(self._alive)) % 5 == rest))
        self._before = self.version, self._alive.copy()
        self._deletes += 1
        if self.format == "delta":
            DeltaBuilder(str(self.path)).delete(lambda rows: pc.equal(_modulo_5(rows["id"]), rest))
        else:
            self._backend.delete(gone.tolist())
        self._alive[gone] = False

    def replace(self, commits: int) -> None:
        """Drop the table and create another one, with other rows, of so many commits, the last one a DELETE. Nobody
        sees the path without a table, unless the new table would name its files by the old path.
        """
        place, aside = self.path, self.path.with_name(f"{self.path.name}.aside")
        if self.format != "iceberg":
            self.path = aside
        else:
            place.rename(aside)
        self._word, self._deletes, self._alive = f"{self._word} again", 0, np.zeros(0, bool)
        self._create()
        while self.commits < commits - 1:
            self.append()
        self.delete()
        if self.path == aside:
            gone = place.rename(place.with_name(f"{place.name}.old"))
            self.path = aside.rename(place)
            self._backend, aside = self._backend_at(self.path), gone
        shutil.rmtree(aside)

    def restore(self) -> None:
        """The version before the last DELETE becomes the newest."""
        version, self._alive = self._before
        restore(str(self.path), version)

    def data_files(self) -> set[Path]:
        """On disk, whether or not the table names them."""
        return {file for file in self.path.rglob("*.parquet") if file.parent.name != "_delta_log"}

    def difference(self) -> str | None:
        """What is wrong with the table's rows; ``None``: nothing."""
        schema, batches = read(self._backend.open())
        rows = pa.Table.from_batches(batches, schema).select(["id", "v"]).sort_by("id")
        found, ids = rows["id"].to_numpy(), np.flatnonzero(self._alive)
        if not np.array_equal(found, ids):
            missing, kept = np.setdiff1d(ids, found), np.intersect1d(ids, found)
            return f"{self.name}: {len(missing)} rows are missing, {len(found) - len(kept)} too many"
        same = rows["v"].combine_chunks().equals(self._values(ids))
        return None if same else f"{self.name}: values are not those that were written"

    def _values(self, ids: np.ndarray) -> pa.Array:
        return pc.binary_join_element_wise(self._word, pa.array(ids).cast(pa.string()), " ")

    # -- accidents -------------------------------------------------------------------------------------------------

    def lose_folder(self) -> Undo:
        away = self.path.rename(self.path.with_name(f"{self.name}.away"))
        return lambda: _moved(away, self.path)

    def lose_deletion_vector(self) -> Undo:
        """The newest file of deletion vectors."""
        victim = _newest(self.path, _DELETION_VECTORS[self.format])
        away = victim.rename(self.path.with_name(f"{self.name}.dv"))
        return lambda: _moved(away, victim)

    def tear_log(self) -> Undo:
        """What the newest commit wrote last is there by half."""
        victim = _newest(self.path, _NEWEST[self.format])
        whole = victim.read_bytes()
        _replace(victim, whole[: len(whole) // 2])
        return lambda: _replace(victim, whole)

    def deny(self, mode: int) -> Undo:
        """Take permissions away from all folders, such as ``0o500``: reading only. Root has to give up its right to
        ignore them (``support.unprivileged``).
        """
        folders = [self.path, *(each for each in self.path.rglob("*") if each.is_dir())]
        before = {folder: folder.stat().st_mode for folder in folders}
        for folder in reversed(folders):
            folder.chmod(mode)

        def undo() -> None:
            for folder, old in before.items():
                folder.chmod(old)

        return undo


def _modulo_5(ids: pa.Array) -> pa.Array:
    return pc.subtract(ids, pc.multiply(pc.divide(ids, 5), 5))


def _newest(folder: Path, pattern: str) -> Path:
    return max(folder.glob(pattern), key=lambda file: file.stat().st_mtime_ns)


def _moved(file: Path, place: Path) -> None:
    file.rename(place)


def _replace(file: Path, data: bytes) -> None:
    """At once: nobody sees a file that is empty."""
    half = file.with_name(f".{file.name}.tmp")
    half.write_bytes(data)
    os.replace(half, file)
