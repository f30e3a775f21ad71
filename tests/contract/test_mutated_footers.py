"""Parquet footers with every value changed in turn: no verb is killed by a library, and none ends in a raw error."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections import Counter
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.thrift_mutations import mutations

from dv_maintenance.files.parquet_footer import footer_bytes
from dv_maintenance.testing.delta_builder import DeltaBuilder

ROWS = pa.table(
    {
        "i": pa.array([1, 2, None, 4], pa.int32()),
        "s": ["a", "bb", "ccc", None],
        "d": [Decimal("1.23"), Decimal("2.20"), None, Decimal("0.01")],
        "t": pa.array([datetime(2020, 1, day) for day in range(1, 5)], pa.timestamp("us", "UTC")),
        "f": [1.0, 2.0, float("nan"), None],
    }
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    builder = DeltaBuilder(str(tmp_path / "table")).create(ROWS.schema)
    builder.append(ROWS)
    builder.delete(lambda rows: pc.equal(rows["i"], 2))
    return tmp_path


def outcomes(folder: Path, footers: list[tuple[str, bytes]]) -> list[tuple[str, str, str]]:
    """What was changed, the verb, and its outcome, for each verb on each footer."""
    (folder / "footers.pickle").write_bytes(pickle.dumps(footers))
    found: list[tuple[str, str, str]] = []
    first = 0
    while first < len(footers):
        victim = subprocess.run(
            [sys.executable, "-m", "support.footer_victim", str(folder), str(first)],
            cwd=Path(__file__).parent.parent,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        lines = [line.split(" ", 2) for line in victim.stdout.split("\n") if line]
        assert lines, victim.stderr
        last = lines[-1]
        if victim.returncode:
            last[2] = f"KILLED {victim.returncode} {victim.stderr[-300:]}"
        found += [(footers[int(number)][0], verb, outcome) for number, verb, outcome in lines]
        first = int(last[0]) + 1
    return found


def check(folder: Path, footers: list[tuple[str, bytes]]) -> None:
    found = outcomes(folder, footers)
    assert not [each for each in found if each[2].startswith(("KILLED", "RAW"))]
    print(Counter(outcome for _, _, outcome in found))


def changed(folder: Path) -> list[tuple[str, bytes]]:
    (file,) = (folder / "table").glob("*.parquet")
    return list(mutations(footer_bytes(pa.OSFile(str(file))) or b""))


# One of each kind that once ended the process, or ended in an error of another library.
KILLERS = {
    "/4[0]/1 one more",
    "/4[0]/1[0]/8 added, of type 12",
    "/4[0]/1[1]/3/1 = 0",
    "/4[0]/1[1]/3/1 = 100",
    "/4[0]/1[1]/3/4 = 100",
    "/4[0]/1[0]/3/12/5 cut",
    "/4[0]/1[2]/3/12/5 cut",
    "/4[0]/1[1]/3/16/3 one more",
    "/2[1]/3 = 0",
    "/2[2]/4 no text",
}


def test_a_few_mutations_of_every_kind(folder: Path) -> None:
    footers = changed(folder)
    assert {label for label, _ in footers} >= KILLERS
    check(folder, [each for number, each in enumerate(footers) if each[0] in KILLERS or number % 400 == 0])


@pytest.mark.deep
def test_every_mutation(folder: Path) -> None:
    check(folder, changed(folder))
