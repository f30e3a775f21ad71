"""Logs, checkpoints and manifests with random damage: whatever is wrong is said by an error of ours, or by none."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dv_maintenance.cli.output import dump_json
from dv_maintenance.errors import DvMaintenanceError
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.maintenance.health import health
from dv_maintenance.maintenance.vacuum import vacuum
from dv_maintenance.tables.file_log import FileLogTable
from dv_maintenance.tables.guard import VacuumRequest
from dv_maintenance.tables.table import Table
from dv_maintenance.testing.backends import DeltaBackend, LanceBackend, PaimonBackend, TableBackend

BACKENDS: dict[str, Callable[[str], TableBackend]] = {
    "delta": DeltaBackend,
    "lance": LanceBackend,
    "paimon": PaimonBackend,
}
# What a mistaken or hostile writer puts in the place of a value of JSON.
VALUES = [b"null", b"1", b"-1", b"99999999999999999999", b"1e400", b'"x"', b'"\\ud800"', b"[]", b"[[]]", b"{}", b"true"]
JSON_VALUE = re.compile(rb'(?<=:)\s*("[^"\\]*"|-?\d+|true|false|null|\[\]|\{\})')


def mutated(data: bytes, chance: random.Random) -> bytes:
    kind = chance.randrange(6)
    found = list(JSON_VALUE.finditer(data))
    if found and kind < 3:
        at = chance.choice(found)
        return data[: at.start()] + chance.choice(VALUES) + data[at.end() :]
    start = chance.randrange(len(data) + 1)
    if kind == 4:
        return data[:start]
    if kind == 5:
        end = min(len(data), start + chance.randrange(40))
        return data[:start] + data[end:]
    noise = chance.randbytes(chance.choice([1, 1, 4]))
    return data[:start] + noise + data[start + len(noise) :]


def reads(backend: TableBackend) -> Iterator[Callable[[], object]]:
    def opened() -> Table:
        return backend.open()

    def file_log() -> None:
        table = opened()
        assert isinstance(table, FileLogTable)
        table.file_log(table.snapshot(), 0)

    yield lambda: health(opened().snapshot())
    yield file_log
    yield lambda: opened().history()
    yield lambda: opened().changes_since(backend.first_version)
    yield backend.rows
    yield lambda: vacuum(opened(), VacuumRequest(dry_run=True, retention=0, allow_short_retention=True))
    yield lambda: vacuum(opened(), VacuumRequest(dry_run=True, retention=0, allow_short_retention=True, lite=True))
    yield lambda: purge(opened(), backend.engine())


@pytest.mark.parametrize("runs", [3, pytest.param(600, marks=pytest.mark.deep)])
@pytest.mark.parametrize("kind", BACKENDS)
def test_damage_is_named(tmp_path: Path, kind: str, runs: int) -> None:
    sound = BACKENDS[kind](str(tmp_path / "sound"))
    sound.create()
    for number in range(3):
        sound.append("a", [(10 * number + at, "a", "x") for at in range(10)])
        sound.delete([10 * number])
    if "checkpoints" in sound.supports:
        sound.checkpoint(sound.moment())
    sound.append("b", [(100, "b", "x")])
    place = tmp_path / "sound"
    files = [file.relative_to(place) for file in sorted(place.rglob("*")) if file.is_file() and file.stat().st_size]
    logs = [file for file in files if "data" not in file.parts and not file.name.startswith(("part-", "data-"))]
    for run in range(runs):
        chance = random.Random(f"{kind} {run}")
        spoilt = tmp_path / f"spoilt{run}"
        shutil.copytree(place, spoilt)
        if chance.random() < 0.5:  # so that old commits count, too
            for file in spoilt.rglob("*checkpoint*"):
                file.unlink()
        there = [name for name in logs if (spoilt / name).exists()]
        for name in chance.sample(there, chance.choice([1, 1, 2])):
            data = (spoilt / name).read_bytes()
            (spoilt / name).write_bytes(mutated(data, chance))
        for read in reads(BACKENDS[kind](str(spoilt))):
            try:
                read()
            except DvMaintenanceError as error:
                dump_json(error.to_json())
        shutil.rmtree(spoilt)
