"""A restore beside a vacuum, as two processes: the short form of ``benchmarks/race_vacuum.py``."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks/race_vacuum.py"


def test_a_restore_beside_a_vacuum(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("race_vacuum", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    race_vacuum = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, race_vacuum)
    spec.loader.exec_module(race_vacuum)
    monkeypatch.setattr(race_vacuum, "RETENTION", 1)
    monkeypatch.setattr(race_vacuum, "DELAYS", [0.1])
    assert race_vacuum.main(1, 12, ["delta-restore"]) == 0
