"""Every verb of every format under faults, and killed at its storage calls; the whole of it is deep.

A verb that dies at a call that only reads leaves what it leaves when it dies after the change before that call. So the
deep form kills before, halfway through, and after every call that changes something. Lance's own library changes files
between our calls; there it kills at every call.

``DVM_FAULTS`` in the environment: how many runs with faults each verb has in the deep form.
"""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import re
import signal
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import nullcontext, suppress
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
from effort import sampled

from dv_maintenance.engine import rewrite
from dv_maintenance.errors import StorageDeniedError
from dv_maintenance.storage import Storage
from dv_maintenance.tables.delta.commit import dv_files
from dv_maintenance.tables.delta.commit import publish as delta_publish
from dv_maintenance.tables.iceberg.table import IcebergTable
from dv_maintenance.tables.iceberg.vacuum.reached import Reached
from dv_maintenance.tables.paimon.commit import publish as paimon_publish
from dv_maintenance.tables.paimon.layout import Layout
from dv_maintenance.tables.paimon.log.manifests import manifest_files
from dv_maintenance.testing.backends import (
    DeltaBackend,
    IcebergBackend,
    LanceBackend,
    PaimonBackend,
    TableBackend,
)
from dv_maintenance.testing.faults import Call, Fault, Faults, Kill
from dv_maintenance.testing.faulty_access import injected
from dv_maintenance.testing.locations import Bucket, Folder, TableLocation
from dv_maintenance.testing.trials import Trial
from dv_maintenance.testing.verbs import Verb, verbs_of

pytestmark = pytest.mark.usefixtures("quick")

RUNS = int(os.environ.get("DVM_FAULTS", "40"))
# About one fault in a run of a hundred calls, or a few: at a high rate every run ends at one of its first reads.
RATES = (0.01, 0.03, 0.1)
# Short forms kill at every so many of the calls, beginning with another one for each verb.
SHARE = 30


def delta(place: str, verb: str) -> TableBackend:
    return DeltaBackend(place, properties={"delta.checkpointInterval": "5"})


def lance(place: str, verb: str) -> TableBackend:
    return LanceBackend(place, enable_v2_manifest_paths=verb != "rename-manifests")


def paimon(place: str, verb: str) -> TableBackend:
    # Small index files: what is left of them is rewritten.
    return PaimonBackend(place, properties={"deletion-vector.index-file.target-size": "60"})


def iceberg(place: str, verb: str) -> TableBackend:
    return IcebergBackend(place)


def iceberg_2(place: str, verb: str) -> TableBackend:
    return IcebergBackend(place, properties={"format-version": "2"})


def delta_in_bucket(place: str, verb: str) -> TableBackend:
    return delta("s3://lake", verb)


def paimon_in_bucket(place: str, verb: str) -> TableBackend:
    return paimon("s3://lake", verb)


def iceberg_in_bucket(place: str, verb: str) -> TableBackend:
    return iceberg("s3://lake", verb)


Make = Callable[[str, str], TableBackend]
IN_BUCKET: tuple[Make, ...] = (delta_in_bucket, paimon_in_bucket, iceberg_in_bucket)
# What the default suite does in a bucket, too: a commit, deletes, multipart uploads, a DV file.
SHORT_IN_BUCKET = {"purge", "vacuum", "delete"}
CASES = [
    pytest.param(
        make,
        verb,
        id=f"{make.__name__}-{verb.name}",
        marks=pytest.mark.deep
        if (make in IN_BUCKET and verb.name not in SHORT_IN_BUCKET) or (make is iceberg_2 and verb.name != "update")
        else (),
    )
    for make in (delta, lance, paimon, iceberg, iceberg_2, *IN_BUCKET)
    for verb in verbs_of(make("nowhere", ""))
]


@pytest.fixture
def trial(tmp_path: Path, make: Make, verb: Verb, monkeypatch: pytest.MonkeyPatch) -> Trial:
    place = tmp_path / "table"
    location: TableLocation = Folder(place)
    if make in IN_BUCKET:
        location = Bucket()
        monkeypatch.setattr(Storage, "default_access", location)
    return trial_at(make(str(place), verb.name), location, verb)


def trial_at(backend: TableBackend, location: TableLocation, verb: Verb) -> Trial:
    def leftovers(paths: Collection[str]) -> Iterator[str]:
        """Names under which our own writing begins, and manifests that no snapshot of Paimon's names."""
        yield from (path for path in paths if path.endswith(".tmp"))
        if isinstance(backend, PaimonBackend):
            yield from {path for path in paths if path.startswith("manifest/")} - named_manifests(backend, paths)
        if isinstance(backend, IcebergBackend):
            yield from {path for path in paths if path.endswith((".avro", ".puffin", "-deletes.parquet"))} - reached(
                backend
            )

    return Trial(backend, location, verb, leftovers)


def reached(backend: TableBackend) -> set[str]:
    table = backend.open()
    assert isinstance(table, IcebergTable)
    metadata, found = table.snapshot().metadata, Reached(table.layout)
    return {path for number in metadata.snapshots for path in found.by(metadata, number)}


def named_manifests(backend: TableBackend, paths: Collection[str]) -> set[str]:
    layout = Layout(backend.open().storage)
    named: set[str] = set()
    for path in paths:
        if not re.fullmatch(r"snapshot/snapshot-\d+", path):
            continue
        snapshot = json.loads(layout.storage.get(path))
        lists = [snapshot["baseManifestList"], snapshot["deltaManifestList"]]
        manifests = [each.name for name in lists for each in manifest_files(layout, name, snapshot["id"])]
        index = [snapshot["indexManifest"]] if "indexManifest" in snapshot else []
        named |= {layout.manifest(name) for name in (*lists, *manifests, *index)}
    return named


def kills(points: list[Call], *whens: str) -> list[Kill]:
    halfway = [Kill(point.number, "halfway") for point in points if Fault.FULL_HALFWAY in point.possible]
    return [Kill(point.number, when) for point in points for when in whens] + halfway


@pytest.mark.parametrize(("make", "verb"), sampled(CASES, 4))
def test_killed_at_some_of_its_calls(make: Make, verb: Verb, trial: Trial) -> None:
    first = sum(map(ord, f"{make.__name__}{verb.name}")) % SHARE
    found = kills(trial.points(), "before")
    for kill in found[first % max(1, len(found)) :: SHARE]:
        assert trial.kill(kill)


@pytest.mark.parametrize(("make", "verb"), sampled(CASES, 4, first=2))
def test_disturbed_a_little(make: Make, verb: Verb, trial: Trial) -> None:
    seed = sum(map(ord, f"{make.__name__}{verb.name}"))
    trial.disturb(Faults(seed, rate=0.1, kinds=kinds_for(verb)))


@dataclasses.dataclass(slots=True)
class Denied:
    """From one call on the storage denies every change. ``calls``: those it denied, or gave no space."""

    number: int
    kind: Fault = Fault.FORBID
    calls: list[Call] = dataclasses.field(default_factory=list)

    def fault(self, call: Call) -> Fault | None:
        if call.number < self.number or self.kind not in call.possible or not call.changes:
            return None
        self.calls.append(call)
        return self.kind

    def done(self, call: Call) -> None:
        """Nothing more to it."""


def check_denied(trial: Trial, point: Call, kind: Fault) -> None:
    """No call is made again that was denied, and what the error says of the table is true."""
    script = Denied(point.number, kind)
    error = trial.disturb(script)
    assert script.calls
    writes = {"create", "link", "put", "open output"}
    # A downgrade writes a checkpoint, then cleans the log with another one; neither is needed.
    tried = Counter(call.path for call in script.calls if call.operation in writes and ".checkpoint." not in call.path)
    assert not [path for path, count in tried.items() if count > 1]
    if point.operation in {"create", "link"}:  # of a commit, in all verbs but the clean-up of a log
        assert error is None or isinstance(error, StorageDeniedError), error
        assert error is None or "not known" not in str(error.done), error


@pytest.mark.parametrize(("make", "verb"), sampled([each for each in CASES if "lance" not in str(each.id)], 3))
def test_denied_at_its_commit(make: Make, verb: Verb, trial: Trial) -> None:
    check_denied(trial, committing(trial.points()), Fault.FORBID)


@pytest.mark.deep
@pytest.mark.parametrize("kind", [Fault.FORBID, Fault.FULL])
@pytest.mark.parametrize(("make", "verb"), CASES)
def test_denied_from_every_change_on(make: Make, verb: Verb, trial: Trial, kind: Fault) -> None:
    for point in trial.points():
        if kind in point.possible:
            check_denied(trial, point, kind)


# -- the process dies indeed -------------------------------------------------------------------------------------------


def dying(trial: Trial, make: Make, kill: Kill | None) -> ForkServerProcess:
    """A process of its own that runs the verb; it dies at the ``kill``, if there is one."""
    # The server has what every such process imports, and no thread that a fork would lose.
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["dv_maintenance.testing.trials", "dv_maintenance.testing.verbs", "obstore"])
    return processes.Process(target=run_and_die, args=(make, trial.backend.place, trial.verb.name, trial.now, kill))


def sigkilled(trial: Trial, make: Make, kill: Kill) -> set[str]:
    """Kill the process. Returns the paths of the files that it left."""
    left: set[str] = set()

    def die() -> None:
        before = trial.location.files()
        process = dying(trial, make, kill)
        process.start()
        process.join(600)
        assert process.exitcode == -signal.SIGKILL, kill
        left.update(trial.location.files().keys() - before.keys())

    trial.survive(die)
    return left


def killed_at_change(trial: Trial, make: Make, place: Path, number: int) -> bool:
    """Kill the process as soon as so many changes show on disk, whoever in it writes. Whether it came to that."""
    ended: list[int | None] = []

    def die() -> None:
        process = dying(trial, make, None)
        seen = sizes(place)
        changes = 0
        process.start()
        while process.is_alive():
            now = sizes(place)
            changes += now != seen
            seen = now
            if changes == number:
                process.kill()
                process.join()
        process.join()
        ended.append(process.exitcode)

    trial.survive(die)
    assert ended[0] in {0, -signal.SIGKILL}
    return ended[0] != 0


def sizes(place: Path) -> dict[str, int]:
    found = {}
    for folder, _, names in os.walk(place):
        for name in names:
            with suppress(FileNotFoundError):
                found[f"{folder}/{name}"] = os.stat(f"{folder}/{name}").st_size
    return found


def run_and_die(make: Make, place: str, name: str, now: int, kill: Kill | None) -> None:
    delta_publish._FIRST_PAUSE = paimon_publish._FIRST_PAUSE = rewrite._PAUSE_SECONDS = 0.0
    dv_files._INLINE = 0
    backend = make(place, name)
    verb = next(verb for verb in verbs_of(backend) if verb.name == name)
    with injected(dataclasses.replace(kill, by_signal=True)) if kill else nullcontext():
        verb.run(backend, now)


def committing(points: list[Call]) -> Call:
    """The put-if-absent that decides, where there is one."""
    deciding = [point for point in points if point.operation in {"create", "link"}]
    return (deciding or points)[-1]


def case(make: Make, name: str, *marks: pytest.MarkDecorator) -> Any:
    verb = next(verb for verb in verbs_of(make("nowhere", "")) if verb.name == name)
    return pytest.param(make, verb, id=f"{make.__name__}-{name}", marks=marks)


# Data files, deletion vectors, and what Paimon's snapshots are made of.
UNCOMMITTED = [case(delta, "update"), case(paimon, "purge", pytest.mark.deep)]
ON_DISK = [case for case in CASES if case.values[0] not in IN_BUCKET]
# What a purge of Lance changes, Lance's own library writes: no call of ours to die at.
SIGNALLED = [each for each in ON_DISK if each.id not in {"lance-purge", "lance-optimize"}]
WATCHED = [
    *(case(lance, name) for name in ("purge", "optimize", "delete")),
    *(case(delta, name) for name in ("purge", "merge")),
    *(case(paimon, name) for name in ("purge", "delete", "vacuum")),
]


@pytest.mark.parametrize(("make", "verb"), UNCOMMITTED)
def test_vacuum_finds_what_a_killed_process_left(make: Make, verb: Verb, trial: Trial) -> None:
    commit = committing(trial.points())
    left = sigkilled(trial, make, Kill(commit.number))
    assert any(path.endswith(".parquet") for path in left)
    assert {delta: "deletion_vector", paimon: "manifest/"}[make] in " ".join(left)


@pytest.mark.deep
@pytest.mark.parametrize(("make", "verb"), SIGNALLED)
def test_killed_by_a_signal(make: Make, verb: Verb, trial: Trial) -> None:
    points = trial.points()
    sample = {point.number: point for point in (points[0], points[len(points) // 2], committing(points), points[-1])}
    found = kills(list(sample.values()), "before", "after")
    left = [sigkilled(trial, make, kill) for kill in found]
    print(f"\n{make.__name__} {verb.name}: {len(found)} kills by SIGKILL, files left by {sum(map(bool, left))}")


@pytest.mark.deep
@pytest.mark.parametrize(("make", "verb"), WATCHED)
def test_killed_when_something_changed_on_disk(make: Make, verb: Verb, trial: Trial, tmp_path: Path) -> None:
    killed = 0
    for number in range(1, 40):
        # On a busy machine a process may end before its first change is seen.
        died = [killed_at_change(trial, make, tmp_path / "table", number) for _ in range(2 if killed else 10)]
        killed += sum(died)
        if not any(died):
            break
    assert killed
    print(f"\n{make.__name__} {verb.name}: {killed} kills by SIGKILL, at up to {number - 1} changes")


# -- all of it ---------------------------------------------------------------------------------------------------------


@pytest.mark.deep
@pytest.mark.parametrize(("make", "verb"), CASES)
def test_killed_at_every_change(make: Make, verb: Verb, trial: Trial) -> None:
    calls = trial.points(all_calls=True)
    # Lance's own library changes files between two calls of ours: each call is another state.
    found = kills([call for call in calls if call.changes or make is lance], "before", "after")
    assert found
    for kill in found:
        assert trial.kill(kill), kill
    print(f"\n{make.__name__} {verb.name}: {len(calls)} calls, {len(found)} kills")


@pytest.mark.deep
@pytest.mark.parametrize(("make", "verb"), CASES)
def test_disturbed_again_and_again(make: Make, verb: Verb, trial: Trial) -> None:
    injected: Counter[Fault] = Counter()
    ended: Counter[str] = Counter()
    for seed in range(RUNS):
        script = Faults(seed, rate=RATES[seed % 3], kinds=kinds_for(verb))
        error = trial.disturb(script)
        injected += script.injected
        ended[type(error).__name__ if error else "done"] += 1
    print(f"\n{make.__name__} {verb.name}: {dict(injected)}, {dict(ended)}")


def kinds_for(verb: Verb) -> frozenset[Fault]:
    """Who makes a table of a folder has nothing to go by but its listing."""
    return frozenset(Fault) - ({Fault.LATE_LIST} if verb.name == "convert" else set())


def test_the_names_are_those_of_the_verbs() -> None:
    assert len(CASES) == len({case.id for case in CASES})
    assert all(re.fullmatch(r"[a-z -]+", verb.name) for _, verb in (case.values for case in CASES))
