from __future__ import annotations

import pytest

from dv_maintenance.engine import rewrite
from dv_maintenance.tables.delta.commit import dv_files
from dv_maintenance.tables.delta.commit import publish as delta_publish
from dv_maintenance.tables.iceberg.commit import publish as iceberg_publish
from dv_maintenance.tables.paimon.commit import publish as paimon_publish

# The suites live in the package, where pytest would leave their asserts without a word on what was compared.
pytest.register_assert_rewrite("dv_maintenance.testing")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pauses between attempts, and deletion vectors of few rows in files of their own."""
    for publish in (delta_publish, iceberg_publish, paimon_publish):
        monkeypatch.setattr(publish, "_FIRST_PAUSE", 0.0)
    monkeypatch.setattr(rewrite, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(dv_files, "_INLINE", 0)
