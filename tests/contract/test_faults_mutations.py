"""What the net of faults and kills is for: each of these mistakes, made on purpose, is caught by it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dv_maintenance.errors import StorageError, VerificationError
from dv_maintenance.maintenance import downgrade
from dv_maintenance.maintenance.execution import round as rounds
from dv_maintenance.storage import FileExistsAlreadyError, Storage
from dv_maintenance.tables.delta.commit import dv_files, publish
from dv_maintenance.tables.delta.commit.dv_files import CommitDvs
from dv_maintenance.tables.paimon.commit import publish as paimon_publish
from dv_maintenance.testing.backends import DeltaBackend, PaimonBackend, TableBackend
from dv_maintenance.testing.faults import Call, Fault, Kill, Script
from dv_maintenance.testing.locations import Folder
from dv_maintenance.testing.trials import Trial
from dv_maintenance.testing.verbs import verbs_of

pytestmark = pytest.mark.usefixtures("quick")


class Once:
    """One fault, at the first call that is of an operation and has a text in its path; ``then`` all calls that only
    read fail.
    """

    def __init__(self, fault: Fault, operation: str, text: str, *, then: bool = False) -> None:
        self.wanted, self.operation, self.text, self.then = fault, operation, text, then
        self.happened = False

    def fault(self, call: Call) -> Fault | None:
        if self.happened:
            return Fault.FAIL if self.then and not call.changes else None
        self.happened = call.operation == self.operation and self.text in call.path
        return self.wanted if self.happened else None

    def done(self, call: Call) -> None:
        pass


def trial(tmp_path: Path, verb: str, backend: Callable[[str], TableBackend] = DeltaBackend) -> Trial:
    place = tmp_path / "table"
    made = backend(str(place))
    return Trial(made, Folder(place), next(each for each in verbs_of(made) if each.name == verb))


def passes(subject: Trial, scripts: Iterable[Script | Kill]) -> bool:
    """Whether the net has nothing to say. What it says is an assertion that fails, a table that can't be read, or an
    error that is none of ours.
    """
    for script in scripts:
        try:
            if isinstance(script, Kill):
                subject.kill(script)
            else:
                subject.disturb(script)
        except Exception:  # noqa: BLE001 - whatever it is
            return False
    return True


def each_kill(subject: Trial) -> list[Kill]:
    return [Kill(point.number) for point in subject.points()]


def test_a_lost_answer_that_is_not_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = trial(tmp_path, "purge")
    lost = [(Fault.LOSE_ANSWER, "create", ".json"), (Fault.DUPLICATE, "create", ".json")]
    assert passes(subject, (Once(*each) for each in lost))
    monkeypatch.setattr(publish, "_transaction", lambda actions: None)
    assert not any(passes(subject, [Once(*each)]) for each in lost)


def test_a_mutation_that_takes_its_own_snapshot_for_another_writers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = trial(tmp_path, "purge", PaimonBackend)
    repeated = (Fault.DUPLICATE, "link", "snapshot-")
    assert passes(subject, [Once(*repeated)])

    def create(storage: Any, path: str, body: bytes, _: Any) -> bool:
        try:
            storage.create(path, body, staging=f"{path.replace('snapshot-', '.snapshot-')}.tmp")
        except FileExistsAlreadyError:
            return False
        return True

    monkeypatch.setattr(paimon_publish, "create_once", create)
    assert not passes(subject, [Once(*repeated)])


def test_a_mutation_that_writes_a_deletion_vector_after_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = trial(tmp_path, "delete")
    kills = each_kill(subject)
    assert passes(subject, kills)
    late: list[tuple[Storage, str, bytes]] = []
    write, cleaned_up, put = CommitDvs._write, CommitDvs.cleaned_up, Storage.put

    def write_later(self: CommitDvs, dvs: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(Storage, "put", lambda storage, path, data: late.append((storage, path, data)))
            return write(self, dvs)

    @contextmanager
    def write_now(self: CommitDvs) -> Iterator[None]:
        late.clear()
        with cleaned_up(self):
            yield
        for each in late:
            put(*each)

    monkeypatch.setattr(CommitDvs, "_write", write_later)
    monkeypatch.setattr(CommitDvs, "cleaned_up", write_now)
    assert not passes(subject, each_kill(subject))


def test_a_cleanup_where_it_is_not_known_what_was_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = trial(tmp_path, "purge")
    unknown = (Fault.LOSE_ANSWER, "create", ".json")
    assert passes(subject, [Once(*unknown, then=True)])
    monkeypatch.setattr(rounds, "_NOT_COMMITTED", (VerificationError, StorageError))
    assert not passes(subject, [Once(*unknown, then=True)])


def test_a_mutation_that_records_success_before_the_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = trial(tmp_path, "delete")
    failed = (Fault.FAIL, "put", "deletion_vector")
    assert passes(subject, [Once(*failed)])

    def place(self: CommitDvs, dvs: Any) -> Any:
        if dvs != self._wanted:
            self._wanted, self._placed = dvs, dv_files._Placed()
            self._placed = self._write(dvs)
        return self._placed.descriptors

    monkeypatch.setattr(CommitDvs, "place", place)
    assert not passes(subject, [Once(*failed)])


def test_a_mutation_that_hides_what_was_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def silent(taken: Any) -> Iterator[None]:
        yield

    subject = trial(tmp_path, "downgrade")
    late = (Fault.FAIL, "put", "_last_checkpoint")
    assert passes(subject, [Once(*late, then=True)])
    monkeypatch.setattr(downgrade, "_telling", silent)
    assert not passes(subject, [Once(*late, then=True)])
