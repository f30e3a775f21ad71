"""Two processes at one table: a whole verb of the one at each call of the other, files out of their retention."""

from __future__ import annotations

from pathlib import Path

import pytest

from dv_maintenance.testing.backends import DeltaBackend, IcebergBackend, LanceBackend, PaimonBackend, TableBackend
from dv_maintenance.testing.locations import Folder
from dv_maintenance.testing.trials import Trial
from dv_maintenance.testing.verbs import verbs_of

pytestmark = pytest.mark.usefixtures("quick")

PAIRS = [
    ("delta", "restore", "vacuum"),
    ("delta", "vacuum", "restore"),
    ("delta", "undelete", "vacuum"),
    *(
        (kind, *pair)
        for kind in ("delta", "lance", "paimon", "iceberg")
        for pair in (("vacuum", "vacuum"), ("purge", "vacuum"))
    ),
    *((kind, "delete", "vacuum") for kind in ("delta", "lance", "paimon", "iceberg")),
]
KINDS = {"delta": DeltaBackend, "lance": LanceBackend, "paimon": PaimonBackend, "iceberg": IcebergBackend}


@pytest.mark.deep
@pytest.mark.parametrize(("kind", "first", "second"), PAIRS)
def test_a_verb_at_each_call_of_another(tmp_path: Path, kind: str, first: str, second: str) -> None:
    backend: TableBackend = KINDS[kind](str(tmp_path / "table"))
    verbs = {verb.name: verb for verb in verbs_of(backend)}
    trial = Trial(backend, Folder(tmp_path / "table"), verbs[first])
    calls = trial.points(all_calls=True)
    ended: dict[tuple[str, str], int] = {}
    for call in calls:
        errors = trial.interrupt(call.number, verbs[second])
        names = tuple(type(error).__name__ if error else "done" for error in errors)
        ended[names[0], names[1]] = ended.get((names[0], names[1]), 0) + 1
    print(f"\n{kind} {first} with {second}: {len(calls)} calls, {ended}")
