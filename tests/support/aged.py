"""Lance tables with a past: versions and files of given ages, orphans, and what pylance says of all that."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa

from dv_maintenance.storage import Storage
from dv_maintenance.tables.lance.log.versions import all_versions
from support.raw_manifest import Record, message, patch

DAY = 86_400_000
FOLDERS = ("_versions", "_transactions", "_deletions", "_indices", "data")


def clock() -> int:
    return time.time_ns() // 1_000_000


def touch(path: Path, millis: int) -> None:
    os.utime(path, ns=(millis * 1_000_000, millis * 1_000_000))


def age(table: Path, first_day: int = 100, *, manifests: bool = True) -> dict[int, int]:
    """Version 1 was committed ``first_day`` days ago, each other one a day later; files are as old as the first version
    could be. Returns when, by version. ``manifests``: whether storage says the same of them, as it does not of a copy.
    """
    start = clock() - first_day * DAY
    times = {}
    for file in all_versions(Storage(str(table))):
        times[file.version] = start + file.version * DAY
        path = table / file.path
        set_time(path, times[file.version])
        if manifests:
            touch(path, times[file.version])
    for path in own_files(table):
        if path.parts[0] != "_versions":
            touch(table / path, start)
    return times


def set_time(manifest: Path, millis: int) -> None:
    stamp = message((1, millis // 1000), (2, millis % 1000 * 1_000_000))

    def change(records: list[Record]) -> list[Record]:
        return [(7, stamp) if number == 7 else (number, value) for number, value in records]

    patch(manifest, change)


def own_files(table: Path) -> set[Path]:
    return {path.relative_to(table) for folder in FOLDERS for path in (table / folder).rglob("*") if path.is_file()}


def plant(table: Path, days: float, names: Iterable[str]) -> set[str]:
    """Files that nobody committed, so many days old."""
    for name in names:
        path = table / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
        touch(path, int(clock() - days * DAY))
    return set(names)


def orphans_of_every_kind(mark: str) -> list[str]:
    uuid = f"{mark}0000000-0000-4000-8000-000000000000"
    return [
        f"data/{mark}.lance",
        f"data/{mark}/01.blob",
        f"data/.tmp{mark}",
        f"_deletions/0-1-{ord(mark)}.arrow",
        f"_deletions/7-1-{ord(mark)}.bin",
        f"_transactions/1-{uuid}.txn",
        f"_indices/{uuid}/index.idx",
        f"_indices/{uuid}/part/aux.idx",
        f"_versions/.tmp_{mark}.manifest_x",
        f"_versions/{ord(mark)}.manifest#1",
        f"_deletions/8-1-{ord(mark)}.arrow#2",
    ]


def foreign_of_every_kind() -> list[str]:
    return [
        "data/notes.txt", "data/y/z/c.blob", "data/y/z.lance", "_deletions/x.arrow", "_deletions/old/0-1-2.arrow",
        "_transactions/x.json", "_indices/mine/index.idx", "_versions/x.manifest", "_versions/0.manifest.bak",
        "_versions/x.manifest#1", "_deletions/x.arrow#1",
    ]  # fmt: skip


def rows(pylance: ModuleType, place: Path | str, version: Any = None) -> pa.Table:
    """``version``: also a tag, or a branch and a version."""
    dataset = pylance.dataset(str(place))
    return (dataset if version is None else dataset.checkout_version(version)).to_table()


def named_by(dataset: Any) -> set[str]:
    """Paths of the table's own files that its versions name, by pylance."""
    tracked = dataset.tracked_files().read_all().to_pylist()
    return {each["path"] for each in tracked if Path(each["base_uri"]) == Path(dataset.uri)}
