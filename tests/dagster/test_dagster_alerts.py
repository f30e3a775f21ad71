"""The recipe of docs/guides/alerts.md, executed with stand-ins for Slack and the mail server."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Self

import dagster as dg
import pytest
from support.places import ROOT

from dv_maintenance.dagster import SparkResource, build_dv_assets, build_dv_checks
from dv_maintenance.service.tables_file import TableSettings

PAGE = ROOT / "docs" / "guides" / "alerts.md"


@pytest.fixture
def posted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    import slack_sdk

    texts: list[str] = []
    monkeypatch.setattr(
        slack_sdk.WebClient,
        "chat_postMessage",
        lambda _client, *, channel, text, blocks=None: texts.append(f"{channel} {text} {json.dumps(blocks or '')}"),
    )
    return texts


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("SLACK_TOKEN", "not-a-token")
    (text,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {"__name__": "alerts"}
    exec(compile(text, "alerts.py", "exec"), names)
    return names


@pytest.fixture
def table(tmp_path: Path) -> TableSettings:
    return TableSettings.model_validate({"name": "orders", "path": str(tmp_path / "missing")})


def test_a_failed_run_is_posted_and_mailed(
    recipe: dict[str, Any], posted: list[str], table: TableSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    mails: list[str] = []

    class Server:
        def __init__(self, *_: Any, **__: Any) -> None: ...
        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None: ...
        def login(self, *_: str) -> None: ...
        def sendmail(self, _from: str, _to: str, text: str) -> None:
            mails.append(text)

    monkeypatch.setattr("smtplib.SMTP_SSL", Server)
    instance = dg.DagsterInstance.ephemeral()
    optimize = [each for each in build_dv_assets([table]) if each.key.path[-1].endswith("optimize")]
    failed = dg.materialize(
        optimize,
        instance=instance,
        resources={"spark": SparkResource(engine="local")},
        tags={"dv/table": "orders", "dv/jobs": "optimize"},
        raise_on_error=False,
    )
    assert not failed.success
    context = dg.build_run_status_sensor_context(
        "failed_to_slack",
        dagster_event=failed.get_run_failure_event(),
        dagster_instance=instance,
        dagster_run=failed.dagster_run,
    ).for_run_failure()
    recipe["failed_to_slack"](context)
    recipe["failed_to_mail"](context)
    (post,), (mail,) = posted, mails
    for text in (post, mail):
        assert "optimize of orders failed: " in text
        assert "no table found here" in text
    assert post.startswith("#lake ")


@pytest.mark.parametrize("check", ["oldest_dv", "readable"])
def test_a_failed_check_is_posted_once(
    check: str, recipe: dict[str, Any], posted: list[str], table: TableSettings
) -> None:
    instance = dg.DagsterInstance.ephemeral()
    defs = dg.Definitions(
        build_dv_assets([table]),
        asset_checks=build_dv_checks([table]),
        resources={"spark": SparkResource(engine="local")},
        sensors=[recipe["checks_to_slack"]],
    )
    cursor: str | None = None

    def tick(*, passed: bool | None) -> None:
        nonlocal cursor
        if passed is not None:
            instance.report_runless_asset_event(
                dg.AssetCheckEvaluation(
                    asset_key=dg.AssetKey("orders"),
                    check_name=check,
                    passed=passed,
                    description="rows deleted on 1 Nov 2026, 01:00 UTC are still in live files",
                )
            )
        slack = recipe["SlackResource"](token="not-a-token")
        with dg.build_sensor_context(
            instance=instance, cursor=cursor, definitions=defs, resources={"slack": slack}
        ) as context:
            recipe["checks_to_slack"](context)
            cursor = context.cursor

    tick(passed=None)
    tick(passed=True)
    assert posted == []
    tick(passed=False)
    tick(passed=False)
    assert [each.split(' "')[0] for each in posted] == [
        f"#lake orders: {check}: rows deleted on 1 Nov 2026, 01:00 UTC are still in live files"
    ]
    tick(passed=True)
    tick(passed=False)
    assert len(posted) == 2
