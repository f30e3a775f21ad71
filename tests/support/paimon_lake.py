"""Paimon tables with a history for tests of what may be deleted, next to a plain model of who needs which file.

The model is made while the files are: nothing of it is read from them.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from dv_maintenance.dv import DeletionVector
from dv_maintenance.storage import Storage
from dv_maintenance.tables.guard import VacuumRequest
from dv_maintenance.tables.paimon.table import PaimonTable
from dv_maintenance.tables.reports import VacuumReport
from support.paimon_writer import MAX_LONG, DataFile, PaimonWriter, entry_schema, list_schema

HOUR, DAY = 3_600_000, 86_400_000
OWN = ("snapshot/", "schema/", "tag/", "changelog/", "consumer/")

LASTING = {"changelog.time-retained": "30 d"}

State = tuple[dict[Any, DataFile], dict[Any, DeletionVector], list[dict[str, Any]], str | None, frozenset[str]]


@dataclass
class Lake(PaimonWriter):
    """A table, or with ``branch`` one of its branches: ``path`` is the table's in both cases. A second passes with each
    commit, and files are as old as the moment that they are written at says.

    ``needs``: by snapshot, the paths that it needs, for ever. ``states``: what it takes to go back to one. ``tagged``:
    by name of the tag, the same. ``trunk``: what a branch is one of. ``changes``: by snapshot, what its changelog needs
    once it is gone, and in front of that the part of it that a reader of the changes opens.
    """

    branch: str | None = None
    needs: dict[int, frozenset[str]] = field(default_factory=dict)
    states: dict[int, State] = field(default_factory=dict)
    tagged: dict[str, tuple[int, frozenset[str]]] = field(default_factory=dict)
    changes: dict[int, tuple[frozenset[str], frozenset[str]]] = field(default_factory=dict)
    lakes: dict[str, Lake] = field(default_factory=dict)
    trunk: Lake | None = field(default=None, repr=False, compare=False)
    index_paths: frozenset[str] = frozenset()
    letter: str = "a"

    # -- files ----------------------------------------------------------------------------------------------------

    @property
    def own(self) -> str:
        return "" if self.branch is None else f"branch/branch-{self.branch}/"

    def put(self, path: str, data: bytes) -> None:
        path = f"{self.own}{path}" if path.startswith(OWN) else path
        super().put(path, data)
        os.utime(self.path / path, (self.now / 1000, self.now / 1000))

    def name(self, kind: str, suffix: str = "") -> str:
        self._names += 1
        return f"{kind}-{ord(self.letter):08x}-{self._names:04x}-4000-8000-000000000000-0{suffix}"

    def new_file(
        self, partition: tuple[Any, ...] = (), bucket: int = 0, level: int = 0, extra: int = 0, kind: str = "data"
    ) -> DataFile:
        name = self.name(kind, ".parquet")
        more = tuple(f"{name}.{number}.index" for number in range(extra))
        file = DataFile(name, 10, partition, bucket, level, 1, (("_EXTRA_FILES", more),))
        for path in self.paths(file):
            self.put(path, b"x")
        return file

    def folder(self, file: DataFile) -> str:
        parts = [f"{key}={value}" for key, value in zip(self.partition_keys, file.partition, strict=False)]
        return "/".join([*parts, f"bucket-{file.bucket}"])

    def paths(self, file: DataFile) -> list[str]:
        more = dict(file.entry).get("_EXTRA_FILES", ())
        return [f"{self.folder(file)}/{name}" for name in (file.name, *more)]

    # -- commits --------------------------------------------------------------------------------------------------

    def commit(self, kind: str, add: Sequence[DataFile] = (), delete: Sequence[DataFile] = (), **body: Any) -> None:
        more = body.pop("needs", frozenset())
        before, earlier = set(self.listed("manifest")), [*self.files.values()]
        super().commit(kind, add, delete, **body)
        lists = {path for path in set(self.listed("manifest")) - before if "manifest-list" in path}
        manifests = {f"manifest/{each['_FILE_NAME']}" for each in self._base}
        data = {path for file in self.files.values() for path in self.paths(file)}
        index = {f"manifest/{self._index}"} if self._index else set()
        found = frozenset(lists | manifests | data | index | self.index_paths | more)
        self.needs[self.version] = found
        if body.get("changelogManifestList"):
            self.changes[self.version] = (more, more)
        elif self.options.get("changelog-producer", "none") == "none":
            own = {path for file in add if appended(file) for path in self.paths(file)}
            there = {path for file in [*earlier, *delete] if appended(file) for path in self.paths(file)}
            opened = frozenset(lists | manifests | own)
            self.changes[self.version] = (opened, opened | there)
        else:
            self.changes[self.version] = (frozenset(), frozenset())
        self.states[self.version] = (dict(self.files), dict(self.dvs), list(self._base), self._index, self.index_paths)

    def listed(self, folder: str) -> list[str]:
        place = self.path / folder
        return [str(path.relative_to(self.path)) for path in place.iterdir()] if place.is_dir() else []

    def add_file(self, partition: tuple[Any, ...] = (), **more: Any) -> DataFile:
        file = self.new_file(partition, **more)
        self.commit("APPEND", add=[file])
        return file

    def write_index(self, entries: Sequence[Mapping[str, Any]] = ()) -> None:
        before = set(self.listed("index"))
        super().write_index(entries)
        new = set(self.listed("index")) - before
        self.index_paths = frozenset(new) | {f"index/{each['_FILE_NAME']}" for each in entries}

    def mark(self, file: DataFile, position: int) -> None:
        """One more row of a file is deleted."""
        self.delete({file: [position]})

    def compact(self, files: Sequence[DataFile]) -> DataFile:
        """Some files become one; the index manifest is rewritten without their DVs."""
        new = self.new_file(files[0].partition, files[0].bucket)
        new = replace(new, entry=(*new.entry, ("_FILE_SOURCE", 1)))
        for file in files:
            self.dvs.pop(file.key, None)
        if self._index is not None:
            self.write_index()
        self.commit("COMPACT", add=[new], delete=files)
        return new

    def upgrade(self, file: DataFile) -> None:
        """The same file, on another level."""
        higher = DataFile(
            file.name, file.rows, file.partition, file.bucket, file.level + 1, file.size, tuple(file.entry)
        )
        # It is known by its key, which has no level: deleted first, added then.
        self.commit("COMPACT", add=[higher], delete=[file])

    def merge_manifests(self) -> None:
        """All manifests so far become one, without what was deleted."""
        if self._base:
            entries = [self.entry(0, file) for file in self.files.values()]
            self._base = [self.manifest(entries)] if entries else []

    def add_with_changelog(self) -> None:
        change, file = self.new_file(kind="changelog"), self.new_file()
        manifest, name = self.manifest([self.entry(0, change)]), self.name("manifest-list")
        self.put_avro(name, list_schema(self.writer), [manifest])
        needs = frozenset({f"manifest/{name}", f"manifest/{manifest['_FILE_NAME']}", *self.paths(change)})
        self.commit("APPEND", add=[file], changelogManifestList=name, needs=needs)

    def analyze(self) -> None:
        name = self.name("stat")
        self.put(f"statistics/{name}", b"{}")
        self.commit("ANALYZE", statistics=name, needs=frozenset({f"statistics/{name}"}))

    # -- references -----------------------------------------------------------------------------------------------

    def numbers(self, kind: str = "snapshot") -> list[int]:
        """The snapshots, or changelogs, that are there."""
        names = [path.name for path in (self.path / f"{self.own}{kind}").glob(f"{kind}-*")]
        return sorted(int(name.removeprefix(f"{kind}-")) for name in names)

    @property
    def decoupled(self) -> bool:
        return any(name.startswith("changelog.") for name in self.options)

    def tag(self, name: str, version: int) -> None:
        source = self.path / f"{self.own}snapshot/snapshot-{version}"
        if source.exists():
            self.put(f"tag/tag-{name}", source.read_bytes())
            self.tagged[name] = (version, self.needs[version])

    def untag(self, name: str) -> None:
        (self.path / f"{self.own}tag/tag-{name}").unlink(missing_ok=True)
        self.tagged.pop(name, None)

    def consume(self, name: str, number: int) -> None:
        self.put(f"consumer/consumer-{name}", json.dumps({"nextSnapshot": number}).encode())

    def branch_off(self, name: str, version: int) -> Lake | None:
        """A branch of a snapshot that is there; ``None`` if it is not, or there is such a branch."""
        source = self.path / f"{self.own}snapshot/snapshot-{version}"
        if name in self.lakes or not source.exists():
            return None
        data = source.read_bytes()
        lake = Lake(
            self.path,
            self.columns,
            self.partition_keys,
            self.primary_keys,
            self.options,
            branch=name,
            now=self.now,
            letter=chr(ord(self.letter) + len(self.lakes) + 1),
            trunk=self,
        )
        lake.restore(version, self.states[version], self.needs[version], data)
        lake.changes[version] = self.changes[version]
        self.lakes[name] = lake
        return lake

    def restore(self, version: int, state: State, needs: frozenset[str], data: bytes) -> None:
        files, dvs, base, self._index, self.index_paths = state
        self.files, self.dvs, self._base = dict(files), dict(dvs), list(base)
        self.version = version
        self.states[version], self.needs[version] = state, needs
        self.put(f"snapshot/snapshot-{version}", data)
        self.put("snapshot/LATEST", str(version).encode())

    def rollback(self, version: int) -> None:
        """As Paimon does: the newest goes first. To a tag's snapshot where the snapshot itself is gone."""
        target = self.path / f"{self.own}snapshot/snapshot-{version}"
        tags = [name for name, (number, _) in self.tagged.items() if number == version]
        if not target.exists() and not tags:
            return
        data = (target if target.exists() else self.path / f"{self.own}tag/tag-{tags[0]}").read_bytes()
        self.put("snapshot/LATEST", str(version).encode())
        for number in reversed(self.numbers()):
            if number > version:
                (self.path / f"{self.own}snapshot/snapshot-{number}").unlink()
        for number in reversed(self.numbers("changelog")):
            if number > version:
                (self.path / f"{self.own}changelog/changelog-{number}").unlink()
                self.put("changelog/LATEST", str(number - 1).encode())
        for name in [name for name, (number, _) in self.tagged.items() if number > version]:
            self.untag(name)
        self.restore(version, self.states[version], self.needs[version], data)

    def fast_forward(self, name: str) -> None:
        """The branch's snapshots take the place of those from its first one on."""
        branch = self.lakes[name]
        first = min(branch.numbers())
        for number in reversed(self.numbers()):
            if number >= first:
                (self.path / f"{self.own}snapshot/snapshot-{number}").unlink()
        for number in branch.numbers():
            data = (self.path / f"{branch.own}snapshot/snapshot-{number}").read_bytes()
            self.restore(number, branch.states[number], branch.needs[number], data)
            self.changes[number] = branch.changes[number]
        self.now = max(self.now, branch.now)

    def expire(self, keep: int, changelogs: int = 1000) -> None:
        """As another process does it: all but the newest, files first; and of the changelogs, too."""
        ids = self.numbers()
        going = ids[: max(0, len(ids) - keep)]
        left = sorted({*self.numbers("changelog"), *going}) if self.decoupled else []
        outdated = left[: max(0, len(left) - changelogs)]
        needed = self.root_needs(exclude=going, left=left)
        for path in {path for number in going for path in self.needs[number]} - needed:
            (self.path / path).unlink(missing_ok=True)
        for number in going:
            snapshot = self.path / f"{self.own}snapshot/snapshot-{number}"
            if self.decoupled:
                self.put(f"changelog/changelog-{number}", snapshot.read_bytes())
                self.put("changelog/LATEST", str(number).encode())
            snapshot.unlink()
        if going:
            self.put("snapshot/EARLIEST", str(going[-1] + 1).encode())
        needed = self.root_needs(left=left[len(outdated) :])
        for number in outdated:
            for path in self.changes[number][1] - needed:
                (self.path / path).unlink(missing_ok=True)
            (self.path / f"{self.own}changelog/changelog-{number}").unlink(missing_ok=True)
        if left:
            self.put("changelog/EARLIEST", str(left[len(outdated)]).encode())

    def root_needs(self, exclude: Sequence[int] = (), left: Sequence[int] | None = None) -> set[str]:
        """All that is needed by what is there, but for snapshots of this branch itself. ``left``: its changelogs, by
        default those that are there.
        """
        elsewhere = [lake.needed_here() for lake in self.whole_table() if lake is not self]
        return self.needed_here(exclude, left).union(*elsewhere)

    def whole_table(self) -> Iterator[Lake]:
        """The table and all of its branches."""
        if self.trunk is not None:
            yield from self.trunk.whole_table()
            return
        todo = [self]
        while todo:
            lake = todo.pop()
            yield lake
            todo += lake.lakes.values()

    def needed_here(self, exclude: Sequence[int] = (), left: Sequence[int] | None = None) -> set[str]:
        """The same, by this branch alone."""
        own = {path for number in self.numbers() if number not in exclude for path in self.needs[number]}
        own |= {path for _, needs in self.tagged.values() for path in needs}
        return own | {
            path for n in (self.numbers("changelog") if left is None else left) for path in self.changes[n][1]
        }

    # -- checks ---------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Whatever is there can be read, there are no gaps, and the newest is the newest."""
        ids = self.numbers()
        assert ids == list(range(self.version - len(ids) + 1, self.version + 1)), (ids, self.version)
        stored = self.stored()
        for number in ids:
            assert self.needs[number] <= stored, (number, sorted(self.needs[number] - stored))
        lasting = self.numbers("changelog")
        if lasting and self.decoupled:
            assert lasting == list(range(lasting[0], lasting[-1] + 1)), lasting
            assert ids[0] <= lasting[-1] + 1, (ids, lasting)
        for number in lasting:
            missing = self.changes[number][0] - stored
            assert not missing, (number, sorted(missing))
        for name, (_, needs) in self.tagged.items():
            assert (self.path / f"{self.own}tag/tag-{name}").exists()
            assert needs <= stored, (name, sorted(needs - stored))
        for lake in self.lakes.values():
            lake.check()

    def stored(self) -> set[str]:
        """Data, indexes, manifests and statistics."""
        files = (str(path.relative_to(self.path)) for path in self.path.rglob("*") if path.is_file())
        return {path for path in files if not path.startswith((*OWN, "branch/"))}

    def everything(self) -> dict[str, bytes]:
        return {str(path.relative_to(self.path)): path.read_bytes() for path in self.path.rglob("*") if path.is_file()}

    def table(self) -> PaimonTable:
        place = self.path / self.own.rstrip("/") if self.own else self.path
        return PaimonTable(Storage(str(place)))

    def vacuum(self, **options: Any) -> VacuumReport:
        """A day and an hour after the last commit, unless ``now`` says otherwise."""
        return self.table().vacuum(VacuumRequest(**{"now": self.now + DAY + HOUR + 1, **options}))


def appended(file: DataFile) -> bool:
    return dict(file.entry).get("_FILE_SOURCE", 0) == 0


def lake(path: Path, **options: Any) -> Lake:
    """An append table that retains at least one snapshot. With ``LASTING``, its changelogs outlive them."""
    more = {"bucket": "-1", "deletion-vectors.enabled": "true", "snapshot.num-retained.min": "1"}
    return Lake(path, options={**more, **options.pop("options", {})}, **options)


def gone(result: VacuumReport) -> set[str]:
    return {file.path for file in result.expired.files}


class CrashError(BaseException):
    """The process died."""


# Of the storage; and with `rename`, the system's.
CALLS = ("get", "get_range", "head", "list", "first_names", "folders", "put", "create", "_unlink")


@contextmanager
def before_each_call(do: Callable[[int, str, Any], None]) -> Iterator[list[str]]:
    """``do(number, name, argument)`` happens in front of each call of the storage, from 0 on."""
    calls: list[str] = []

    def wrapped(name: str) -> Any:
        inner = getattr(Storage, name)

        def call(self: Storage, *args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            do(len(calls) - 1, name, args[0] if args else None)
            return inner(self, *args, **kwargs)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in CALLS:
            patch.setattr(Storage, name, wrapped(name))

        def rename(place: str, aside: str, inner: Any = os.rename) -> None:
            calls.append("rename")
            do(len(calls) - 1, "rename", place)
            inner(place, aside)

        patch.setattr(os, "rename", rename)
        yield calls


def crashed_vacuums(original: Lake, path: Path, step: int) -> Iterator[Lake]:
    """Tables whose vacuum was run again after the process had died, in front of each ``step``-th deletion or write; and
    in the end one whose vacuum was not disturbed.
    """
    number = 0
    while True:
        table = copied(original, path / f"c{number}")
        crashed, changes = False, 0

        def die(_: int, name: str, __: object, at: int = number) -> None:
            nonlocal changes
            if name in {"_unlink", "rename", "put", "create"}:
                if changes == at:
                    raise CrashError
                changes += 1

        with before_each_call(die):
            try:
                table.vacuum()
            except CrashError:
                crashed = True
        table.check()
        if crashed:
            table.vacuum()
            table.check()
        yield table
        if not crashed:
            assert changes > number - step
            return
        number += step


def copied(original: Lake, path: Path) -> Lake:
    """The same table elsewhere, with a model of its own."""
    shutil.copytree(original.path, path)
    return _moved(original, path)


def _moved(original: Lake, path: Path) -> Lake:
    found = Lake.__new__(Lake)
    found.__dict__.update(original.__dict__)
    found.path = path
    for name in ("files", "dvs", "needs", "states", "tagged", "changes"):
        setattr(found, name, dict(getattr(original, name)))
    found._base = list(original._base)
    found.lakes = {name: _moved(each, path) for name, each in original.lakes.items()}
    return found


__all__ = [
    "DAY", "HOUR", "LASTING", "MAX_LONG", "Lake", "before_each_call", "copied", "crashed_vacuums", "entry_schema",
    "gone", "lake",
]  # fmt: skip
