"""Tables that Unity Catalog manages, between us and others: Delta's kernel reads and writes them, DuckDB reads them."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
from support.managed import MAPPED, TRACKED, ManagedBackend
from support.real_unity import RealBackend
from support.unity import Unity
from support.unity_judges import Kernel, KernelConflictError, KernelError, duckdb_rows

from dv_maintenance.catalogs.unity import UnityTable
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import ConflictError, RefusedError
from dv_maintenance.maintenance.checkpoint import checkpoint
from dv_maintenance.maintenance.execution.apply import maintain, purge
from dv_maintenance.maintenance.publish import publish
from dv_maintenance.maintenance.restore import restore
from dv_maintenance.maintenance.vacuum import vacuum
from dv_maintenance.maintenance.zorder import zorder
from dv_maintenance.storage import FileExistsAlreadyError
from dv_maintenance.tables.delta.commit import ratification
from dv_maintenance.tables.delta.log.ratified import Ratified, StagedCommit
from dv_maintenance.tables.delta.log.segment import read_commit
from dv_maintenance.tables.guard import VacuumRequest
from dv_maintenance.testing.backends import DeltaBackend, Row
from dv_maintenance.testing.trials import prepared
from dv_maintenance.testing.verbs import Verb, deletion, verbs_of

NEVER = {"manifests", "downgrade", "convert"}  # no catalog permits these
VERBS = [verb for verb in verbs_of(DeltaBackend("nowhere")) if verb.needs not in NEVER]


@pytest.fixture(params=["plain", "mapped", "tracked"])
def kind(request: pytest.FixtureRequest) -> str:
    """Unity Catalog suggests to map columns, and to track rows."""
    return str(request.param)


@pytest.fixture(params=["our server", "a real one"])
def backend(
    request: pytest.FixtureRequest, tmp_path: Path, kernel: Kernel, kind: str, monkeypatch: pytest.MonkeyPatch
) -> ManagedBackend:
    """A table that is not there yet. Everything is permitted. Rows come from the kernel, which does not write mapped
    columns.
    """
    properties = {"plain": {}, "mapped": MAPPED, "tracked": TRACKED}[kind]
    if request.param == "our server":
        made = ManagedBackend(tmp_path / "table", request.getfixturevalue("server"), properties=properties)
    else:
        request.getfixturevalue("permitted")
        real = request.getfixturevalue("real")
        made = RealBackend(real, real.schema(), properties=properties)
    if kind != "mapped":
        monkeypatch.setattr(made, "append", lambda _, rows: kernel.append(made.judged, rows, publish=True))
    return made


def agreed(backend: ManagedBackend, kernel: Kernel) -> list[Row]:
    """The newest rows, on which all readers agree."""
    ours = sorted(backend.rows())
    version, theirs = kernel.rows(backend.judged)
    assert (version, sorted(theirs)) == (backend.open().version(), ours)
    # DuckDB takes commits that are not published in one order only, which is not that of the real server.
    if not isinstance(backend, RealBackend) or len(backend.held()) < 2:
        # It finds no values of partition columns that are mapped, nor does it in a table that Spark made.
        columns = (0, 2) if MAPPED.items() <= backend.properties.items() else (0, 1, 2)
        found, wanted = (
            [tuple(row[at] for at in columns) for row in rows] for rows in (duckdb_rows(backend.judged), ours)
        )
        assert sorted(found) == sorted(wanted)
    return ours


@pytest.mark.deep
@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_rows_after_each_verb(
    backend: ManagedBackend, kernel: Kernel, verb: Verb, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while its commits are held by the catalog, and nowhere in the log."""
    history = prepared(backend, verb)
    wanted = sorted(verb.rows(history).values())
    with monkeypatch.context() as patch:
        patch.setattr(ratification, "_publish", later)
        verb.run(backend, backend.moment() + backend.retention)
    assert agreed(backend, kernel) == wanted
    publish(backend.open())
    assert agreed(backend, kernel) == wanted


def later(*_: object) -> None:
    raise RefusedError("not yet")


def test_duckdb_reads_what_is_held(server: Unity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = ManagedBackend(tmp_path / "table", server)
    backend.create()
    backend.append("a", [(number, "a", "x") for number in range(6)])
    monkeypatch.setattr(ratification, "_publish", later)
    backend.delete([0, 4])
    assert sorted(duckdb_rows(backend.judged)) == sorted(backend.rows())
    purge(backend.open(), LocalEngine(1))
    assert sorted(duckdb_rows(backend.judged)) == sorted(backend.rows())


# -- races -------------------------------------------------------------------------------------------------------------


@dataclass
class Race:
    """The kernel appends rows, and rewrites files without some of them, while all verbs of ours are at work.

    lost : attempts of ours that the kernel has overtaken.
    done : by version, what the kernel was told that it had committed: a function from the rows before to those after.
    deleted : ids that we have deleted.
    numbers : of the rows of each version, as far as they are tracked.
    """

    backend: ManagedBackend
    kernel: Kernel
    random: Random
    commits: int
    lost: int = 0
    done: dict[int, Callable[[set[Row]], set[Row]]] = field(default_factory=dict)
    deleted: set[int] = field(default_factory=set)
    errors: list[BaseException] = field(default_factory=list)
    numbers: list[Mapping[int, tuple[int, int]]] = field(default_factory=list)

    def run(self) -> None:
        self.kernel.failed_afterwards.clear()
        self.backend.create()
        self.backend.append("a", [(number, "a", "ours") for number in range(40)])
        self.backend.delete([0, 1])
        thread = threading.Thread(target=self._theirs)
        thread.start()
        for _ in range(5 * self.commits):  # not for ever: we are faster than what the kernel rewrites
            if not thread.is_alive():
                break
            self._one_of_ours()
        thread.join()
        assert not self.errors, self.errors
        # It fails at its own checksum of a table in which some files have deletion vectors and others do not, and at a
        # checkpoint that we wrote first.
        harmless = re.compile(r"CHECKSUM_FULL|CHECKPOINT: \S*CheckpointAlreadyExistsException")
        assert [each for each in self.kernel.failed_afterwards if not harmless.match(each)] == []
        self._check()

    # -- the kernel ------------------------------------------------------------------------------------------------

    def _theirs(self) -> None:
        try:
            for number in range(100, 100 + self.commits):
                rows = [(number, "b", "theirs"), (-number, "b", "theirs")]
                self._note(self._insist(self._append, rows), lambda before, rows=rows: before | {*rows})
                gone = self._insist(self._rewrite, number)
                self._note(gone, lambda before, number=number: {row for row in before if row[0] != -number})
        except BaseException as error:  # noqa: BLE001 - reported by the test
            self.errors.append(error)

    def _note(self, version: int, change: Callable[[set[Row]], set[Row]]) -> None:
        assert version not in self.done, "a version is committed once"
        self.done[version] = change

    def _insist(self, commit: Callable[[Any], int], what: Any) -> int:
        while True:
            try:
                return commit(what)
            except KernelConflictError:
                continue
            except KernelError as error:
                if "CommitLimitReached" not in str(error):
                    raise
                self.kernel.publish(self.backend.judged)

    def _append(self, rows: list[Row]) -> int:
        return self.kernel.append(self.backend.judged, rows, publish=self.random.random() < 0.5)

    def _rewrite(self, number: int) -> int:
        return self.kernel.rewrite_without(self.backend.judged, [-number], publish=self.random.random() < 0.5)

    # -- ours ------------------------------------------------------------------------------------------------------

    def _one_of_ours(self) -> None:
        table, engine = self.backend.open(), LocalEngine(1)
        number = len(self.deleted) + 2
        verbs: list[Callable[[], object]] = [
            lambda: purge(table, engine),
            lambda: maintain(table, engine),
            lambda: zorder(table, engine, ["id"]),
            lambda: deletion([number])(self.backend, 0),
            lambda: vacuum(table, VacuumRequest()),
            lambda: restore(table, version=max(2, table.version() - 2)),
            lambda: checkpoint(table),
            lambda: publish(table),
        ]
        verb = self.random.choice(verbs)
        try:
            outcome = verb()
        except ConflictError:
            return
        except RefusedError:  # during a vacuum; or the version is not published yet
            assert verb in verbs[5:7]
            return
        assert getattr(outcome, "verified", True), outcome
        if verb is verbs[3]:
            self.deleted.add(number)

    # -- what must hold --------------------------------------------------------------------------------------------

    def _check(self) -> None:
        """Each version has the rows of the one before it, changed by what its commit says."""
        agreed(self.backend, self.kernel)
        table = self.backend.open()
        infos = [read_commit(table.storage, version)[0]["commitInfo"] for version in range(table.version() + 1)]
        assert len({info["txnId"] for info in infos}) == len(infos)
        times = [info["inCommitTimestamp"] for info in infos]
        assert times == sorted(set(times))
        theirs = {version for version, info in enumerate(infos) if version > 2 and "Kernel" in info["engineInfo"]}
        assert theirs == self.done.keys(), "nothing that was committed is lost, or there without an answer"
        versions: list[set[Row]] = []
        gone: set[int] = set()
        for version, info in enumerate(infos):
            found = self._rows(version)
            before = versions[-1] if versions else set()
            if "rowTracking" in self.backend.features:
                self._check_numbers(version, info)
            match info["operation"]:
                case _ if version in self.done:
                    assert found == self.done[version](before), version
                case "DELETE" if version > 2:
                    (row,) = before - found
                    assert found < before
                    gone.add(row[0])
                case "RESTORE":
                    assert found == versions[info["operationParameters"]["version"]], version
                case operation if version > 2:
                    assert found == before, (version, operation)
            versions.append(found)
        assert gone == self.deleted

    def _check_numbers(self, version: int, info: Mapping[str, Any]) -> None:
        """No two rows have the same number, and what we move keeps its own."""
        found = self.kernel.numbers(self.backend.judged, version)
        assert len({number for number, _ in found.values()}) == len(found)
        if version > 2 and version not in self.done:
            before = self.numbers[info["operationParameters"]["version"] if info["operation"] == "RESTORE" else -1]
            assert found == {row: before[row] for row in found}, version
        self.numbers.append(found)

    def _rows(self, version: int) -> set[Row]:
        """Those of a version. All readers agree on them."""
        ours = sorted(self.backend.rows(version))
        assert (version, ours) == (version, sorted(self.kernel.rows(self.backend.judged, version)[1]))
        assert len(set(ours)) == len(ours)
        return set(ours)


@pytest.mark.deep
@pytest.mark.parametrize(("number", "kind"), [(number, ("plain", "tracked")[number % 2]) for number in range(100)])
def test_races(backend: ManagedBackend, kernel: Kernel, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if not isinstance(backend, RealBackend):
        backend.server.replays = number % 4 < 2
    race, own = Race(backend, kernel, Random(number), commits=4), UnityTable.ratify

    def ratify(self: UnityTable, commit: StagedCommit) -> Ratified:
        time.sleep(race.random.random() / 10)  # a slow network: the kernel is often faster
        try:
            return own(self, commit)
        except FileExistsAlreadyError:
            race.lost += 1
            raise

    monkeypatch.setattr(UnityTable, "ratify", ratify)
    race.run()
    print(f"{len(race.done)} commits of the kernel, {len(race.deleted)} deletes of ours, {race.lost} attempts lost")
