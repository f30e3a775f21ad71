"""Golden tables, laid where their paths lead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def laid(golden: Path, lay: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The root of a golden table, laid once; not to be written to."""
    place = tmp_path_factory.mktemp("iceberg")

    def at(name: str) -> Path:
        if not (place / name).exists():
            lay.lay(str(golden / "iceberg" / name), str(place / name))
        return place / name / "table"

    return at


@pytest.fixture
def laid_copy(golden: Path, lay: ModuleType, tmp_path: Path) -> Callable[[str], Path]:
    """The root of a golden table that a test may change."""

    def at(name: str) -> Path:
        lay.lay(str(golden / "iceberg" / name), str(tmp_path / name))
        return tmp_path / name / "table"

    return at
