"""A verb that fails before its commit takes the files along that it wrote."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dv_maintenance.errors import DvMaintenanceError
from dv_maintenance.tables.delta.commit import publish as delta_publish
from dv_maintenance.tables.iceberg.commit import publish as iceberg_publish
from dv_maintenance.tables.paimon.commit import publish as paimon_publish
from dv_maintenance.testing.backends import DeltaBackend, IcebergBackend, PaimonBackend, TableBackend
from dv_maintenance.testing.faults import Call, Fault
from dv_maintenance.testing.faulty_access import injected
from dv_maintenance.testing.locations import Folder
from dv_maintenance.testing.trials import Trial
from dv_maintenance.testing.verbs import verbs_of


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for each in (delta_publish, iceberg_publish, paimon_publish):
        monkeypatch.setattr(each, "_FIRST_PAUSE", 0.0)


class From:
    """The call and all later ones of its kind fail."""

    def __init__(self, first: Call) -> None:
        self.first = first

    def fault(self, call: Call) -> Fault | None:
        due = call.number >= self.first.number and call.operation == self.first.operation
        return Fault.FAIL if due and Fault.FAIL in call.possible else None

    def done(self, call: Call) -> None:
        pass


def check(place: Path, backend: Callable[[str], TableBackend], verb: str, chosen: Callable[[Call], bool]) -> None:
    made = backend(str(place))
    trial = Trial(made, Folder(place), next(each for each in verbs_of(made) if each.name == verb))
    failed = 0
    for call in filter(chosen, trial.points(all_calls=True)):
        trial.location.reset()
        before = set(trial.location.files())
        error = None
        with injected(From(call)):
            try:
                trial.verb.run(trial.backend, trial.now)
            except DvMaintenanceError as raised:
                error = raised
        if error is not None and "known" not in str(error.to_json()["done"]):
            failed += 1
            left = {path for path in set(trial.location.files()) - before if "/_delta_log/" not in path}
            assert not left, (call, error)
    assert failed


def iceberg_2(place: str) -> TableBackend:
    return IcebergBackend(place, properties={"format-version": "2"})


@pytest.mark.parametrize(
    ("backend", "verb"),
    [
        (IcebergBackend, "update"),
        (iceberg_2, "update"),
        pytest.param(IcebergBackend, "purge", marks=pytest.mark.deep),
        pytest.param(DeltaBackend, "update", marks=pytest.mark.deep),
        pytest.param(PaimonBackend, "purge", marks=pytest.mark.deep),
    ],
)
def test_when_files_can_not_be_read(backend: Callable[[str], TableBackend], verb: str, tmp_path: Path) -> None:
    check(tmp_path / "t", backend, verb, lambda call: call.operation == "read input")
