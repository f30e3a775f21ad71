"""A table is dropped while a verb works on it, and another one with as many versions is created at its place: the verb
does not touch that one.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.interleaving import Watched

import dv_maintenance as dvm
from dv_maintenance.errors import DvMaintenanceError
from dv_maintenance.tables.registry import Location, format_called
from dv_maintenance.testing.backends import DeltaBackend, IcebergBackend

FORMATS = {"delta": DeltaBackend, "iceberg": IcebergBackend}
VERBS: dict[str, Callable[[Any], Any]] = {
    "purge": lambda table: dvm.purge(table, engine="local"),
    "delete": lambda table: dvm.delete(table, "id = 3", engine="local"),
    "checkpoint": dvm.checkpoint,
    "restore": lambda table: dvm.restore(table, 1),
}
VERBS_OF = {"delta": list(VERBS), "iceberg": ["purge", "delete"]}
# By how many calls before the commit. In the default suite: those that a verb without its last look fails.
SOON = {"restore": {14}, "checkpoint": {2}}
CASES = [
    pytest.param(kind, verb, back, marks=[] if back in SOON.get(verb, {0}) else pytest.mark.deep)
    for kind, verbs in VERBS_OF.items()
    for verb in verbs
    for back in range(20 if verb == "restore" else 14)
]
LOOK = 1
"""The call that looks for the last time; see ``check_same_table``, and ``_into_folder`` of Iceberg."""


def made(kind: str, place: Path, first: int) -> None:
    backend: Any = FORMATS[kind](str(place))
    backend.create()
    for number in range(first, first + 4):
        backend.append("a", [(number, "a", "x"), (number + 100, "a", "y")])
    dvm.delete(place, f"id = {first + 1}", engine="local")


def run(kind: str, verb: str, storage: Watched) -> None:
    VERBS[verb](format_called(kind).open(Location(storage)))


@pytest.mark.parametrize(("kind", "verb", "back"), CASES)
def test_a_table_created_meanwhile_is_left_alone(kind: str, verb: str, back: int, tmp_path: Path) -> None:
    """Right before the commit, or ``back`` calls earlier. From the last look to the put nobody sees it."""
    place, other = tmp_path / "t", tmp_path / "other"
    made(kind, place, 0)
    commits: list[int] = []

    class Counted(Watched):
        def create(self, *args: Any, **kwargs: Any) -> Any:
            commits.append(self.calls)
            return super().create(*args, **kwargs)

    run(kind, verb, Counted(str(place), lambda _: None))
    shutil.rmtree(place)
    made(kind, place, 10)  # files of Iceberg name their place
    place.rename(other)
    made(kind, place, 0)

    def swap(call: int) -> None:
        if call == commits[-1] - back - LOOK:
            place.rename(tmp_path / "old")
            other.rename(place)

    with suppress(DvMaintenanceError, FileNotFoundError):
        run(kind, verb, Watched(str(place), swap))
    assert not other.exists()
    ids = dvm.read(place, columns=["id"]).read_all()["id"].to_pylist()
    restored = [10, 110]  # if it had not read anything yet
    assert sorted(ids) in ([10, 12, 13, 110, 111, 112, 113], restored if verb == "restore" else [])
    assert dvm.fsck(place).clean
