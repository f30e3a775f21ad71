"""``dvm doctor`` in Airflow's environment."""

from __future__ import annotations

import json
from importlib import metadata
from typing import Any

import pytest

from dv_maintenance import cli


@pytest.mark.parametrize(("client", "good"), [("4.2.0", True), ("4.1.3", False), (None, None)])
def test_pyspark_client_must_be_of_the_version_of_pyspark(
    client: str | None, good: bool | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The Spark provider brings it, and it overwrites files of pyspark."""
    installed: dict[str, str | None] = {"pyspark": "4.2.0", "pyspark-client": client, "apache-airflow": "2.10.1"}
    real = metadata.version

    def version(name: str) -> Any:
        if installed.get(name, "") is None:
            raise metadata.PackageNotFoundError(name)
        return installed.get(name) or real(name)

    monkeypatch.setattr(metadata, "version", version)
    assert cli.main(["doctor", "--json"]) == 1
    checks = {each["name"]: each for each in json.loads(capsys.readouterr().out)["checks"]}
    assert checks.get("pyspark-client", {}).get("ok") == good
    if good is False:
        assert "dv-maintenance[spark-provider]" in checks["pyspark-client"]["how"]
    assert not checks["apache-airflow"]["ok"], "an Airflow that is too old"
