"""What tests of Delta tables share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dv_maintenance.tables.delta.commit import publish


@pytest.fixture(autouse=True, scope="module")
def no_pauses() -> Iterator[None]:
    """A lost race is run again at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publish, "_FIRST_PAUSE", 0.0)
        yield


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "t")
