"""A Unity Catalog of the tests' own, which ``DVM_CATALOGS`` calls ``uc``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.unity import TOKEN, Unity, unity

from dv_maintenance.tables.delta.commit import publish


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Unity]:
    with unity() as made:
        (tmp_path / "catalogs.yaml").write_text(
            f"catalogs:\n  uc: {{type: unity, uri: '{made.url}', token: '${{UC_TOKEN}}'}}\ntables: []\n"
        )
        monkeypatch.setenv("DVM_CATALOGS", str(tmp_path / "catalogs.yaml"))
        monkeypatch.setenv("UC_TOKEN", TOKEN)
        monkeypatch.setattr("dv_maintenance.catalogs.server._PAUSE", 0.0)
        monkeypatch.setattr(publish, "_FIRST_PAUSE", 0.0)
        yield made
