"""Assets and checks made without Dagster's decorators are those that the decorators make."""

# Without `from __future__ import annotations`: Dagster reads the annotations of ops.

import warnings
from collections.abc import Iterator
from typing import Any

import dagster as dg
import pytest

from dv_maintenance.dagster import SparkResource, nodes
from dv_maintenance.dagster.run_config import OptimizeRun

TABLE = dg.AssetKey(["lake", "a-b_c"])
BELOW = dg.AssetKey(["lake", "a-b_c", "dv", "it"])
SPEC = dg.AssetSpec(
    BELOW,
    deps=[TABLE],
    description="What it is.",
    owners=["team:lake"],
    tags={"of": "us"},
    kinds={"spark"},
    metadata={"runbook": "here"},
    partitions_def=dg.DailyPartitionsDefinition("2026-01-01"),
    skippable=True,
)
OBSERVED = dg.AssetSpec(TABLE, description="A table.", owners=["team:lake"], skippable=True)
OF_OBSERVED = [dg.AssetCheckSpec(name, asset=TABLE, description=f"Is it {name}?") for name in ("new", "old")]
CHECKS = [
    dg.AssetCheckSpec(name, asset=TABLE, description=f"Is it {name}?", additional_deps=[BELOW])
    for name in ("so", "not")
]


def work(context: dg.AssetExecutionContext, _: Any) -> Iterator[Any]:
    yield


def decorated(context: dg.AssetExecutionContext) -> Iterator[Any]:
    yield


def looked(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
    yield dg.AssetCheckResult(passed=True)


def ours() -> list[Any]:
    return [
        nodes.materializable(
            work,
            name="it",
            spec=SPEC,
            pool="dv_a",
            tags={},
            config=OptimizeRun,
            resources=frozenset({"spark"}),
            backfill_policy=dg.BackfillPolicy.single_run(),
        ),
        nodes.observable(work, name="look", spec=OBSERVED, checks=OF_OBSERVED),
        nodes.checks(work, name="checks", specs=CHECKS, description="Looks."),
    ]


def dagsters() -> list[Any]:
    asset = dg.multi_asset(
        name="it",
        specs=[SPEC],
        pool="dv_a",
        config_schema=OptimizeRun.to_fields_dict(),
        required_resource_keys={"spark"},
        backfill_policy=dg.BackfillPolicy.single_run(),
    )
    table = dg.multi_observable_source_asset(name="look", specs=[OBSERVED], check_specs=OF_OBSERVED, can_subset=True)
    checks = dg.multi_asset_check(name="checks", specs=CHECKS, can_subset=True, description="Looks.")
    return [asset(decorated), table(decorated), checks(looked)]


@pytest.fixture(autouse=True)
def beta() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)
        yield


def attributes(assets: dg.AssetsDefinition) -> tuple[Any, ...]:
    op, rest = assets.op, assets.get_attributes_dict()
    del rest["node_def"]
    of_op = (op.name, op.description, op.pool, op.tags, op.retry_policy, op.required_resource_keys, op.ins, op.outs)
    return type(assets), rest | {"specs": list(rest["specs"])}, of_op


def test_they_are_the_same_in_every_attribute() -> None:
    for mine, other in zip(ours(), dagsters(), strict=True):
        assert attributes(mine) == attributes(other)


def test_they_are_the_same_to_dagsters_pages_and_its_launchpad() -> None:
    def snapshot(assets: list[Any]) -> Any:
        defs = dg.Definitions(
            assets=assets[:2], asset_checks=assets[2:], resources={"spark": SparkResource(engine="local")}
        )
        return defs.resolve_implicit_global_asset_job_def().get_job_snapshot()

    assert snapshot(ours()) == snapshot(dagsters())
