"""The pictures, in an order in which each finds what it needs. Each step proves what it shows, or fails."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from browser import Browser
from instance import Dagster, wait_for
from lake import DAYS, Lake
from playwright.sync_api import expect

__all__ = ["steps"]

_SENSOR = "/locations/dv_maintenance/sensors/dv_accumulation"
_GRAPH = 'key:"shop/orders"+ or key:"shop/payments"+'
_TICK_SECONDS = 150
_RUN_SECONDS = 400
# Percent of `returns` deleted after each tick; the last is above the policy's limit.
_DELETED = (5, 10, 14, 18)


def steps(browser: Browser, dagster: Dagster, lake: Lake) -> Iterator[Path]:
    """Take every picture; each is yielded when it is there."""
    yield from backfill(browser, dagster)
    yield from sensor(browser, dagster, lake)
    yield from plots(browser, dagster)
    yield from damaged_table(browser)
    yield from optimize(browser)
    yield graph(browser)


def backfill(browser: Browser, dagster: Dagster) -> Iterator[Path]:
    """Three partitions, chosen and launched by hand, and what each of them reports afterwards."""
    chosen = f"[{DAYS[8]}...{DAYS[9]}], {DAYS[11]}"
    browser.open("/assets/shop/orders/dv/orders_optimize")
    browser.click("Partitions", role="tab")
    browser.see("Missing (14)")
    browser.click("Materialize")
    dialog = browser.page.get_by_role("dialog")
    dialog.get_by_placeholder("No matching partitions").fill(chosen)
    browser.page.keyboard.press("Tab")
    browser.see("3 partitions", inside=dialog)
    yield browser.shoot("backfill-dialog")
    browser.click("Launch backfill", inside=dialog)
    browser.see("Created backfill")

    browser.open("/runs")
    browser.see("3 partitions", "Manually launched")
    browser.see("Success", seconds=_RUN_SECONDS)
    assert [run["status"] for run in dagster.runs()] == ["SUCCESS"] * 2  # one for each range without a gap
    yield browser.shoot("backfill-done")

    browser.open(f"/assets/shop/orders/dv/orders_optimize?view=partitions&partition={DAYS[9]}")
    browser.see("Materialized (3)", "Missing (11)", "rows_purged", "deleted: rewrite into one new file")
    yield browser.shoot("backfill-partition")


def sensor(browser: Browser, dagster: Dagster, lake: Lake) -> Iterator[Path]:
    """Start the sensor with a click: its runs appear, run and end."""
    browser.open(_SENSOR)
    browser.see("Sensor has never run")
    browser.page.get_by_role("checkbox").locator("xpath=..").click()
    _observed(dagster, 1)
    browser.open("/runs")
    browser.see("dv_accumulation", "shop / clicks / dv / clicks_optimize", "Started", seconds=60)
    yield browser.shoot("sensor-runs")
    lake.damage_payments()
    for ticks, percent in enumerate(_DELETED, start=2):
        lake.delete_returns(percent)
        _observed(dagster, ticks)
    wait_for(
        "the compaction of returns", lambda: _done(dagster, "shop/returns/dv/returns_optimize"), seconds=_RUN_SECONDS
    )
    yield from sensor_results(browser)


def sensor_results(browser: Browser) -> Iterator[Path]:
    """The runs that the sensor asked for, all done, and its ticks."""
    browser.open("/runs")
    browser.see("shop / returns / dv / returns_optimize", "dv_accumulation", "Success")
    expect(browser.page.get_by_text(re.compile("^(Failure|Queued|Started)$")).filter(visible=True)).to_have_count(0)
    yield browser.shoot("sensor-runs-done")
    browser.open(_SENSOR)
    browser.see("1 run requested", "0 runs requested", "Reset sensor status")
    yield browser.shoot("sensor-ticks")


def plots(browser: Browser, dagster: Dagster) -> Iterator[Path]:
    """The share of deleted rows over time: it grows with every delete, until the sensor has the table compacted."""
    _observed(dagster, len(_DELETED) + 2)
    browser.open("/assets/shop/returns")
    browser.click("Plots")
    browser.see("deleted_ratio")
    expect(browser.page.locator("canvas")).not_to_have_count(0)
    browser.scroll_to("Metadata")
    yield browser.shoot("table-plots")


def damaged_table(browser: Browser) -> Iterator[Path]:
    """One table can't be read: its check fails and says where, and the others are none the worse."""
    browser.open("/assets/shop/payments?view=checks&checkDetail=readable")
    browser.see("Failed", "not JSON")
    yield browser.shoot("check-failed")
    browser.open("/assets/shop/returns?view=checks&checkDetail=readable")
    browser.see("Passed", "is readable")


def optimize(browser: Browser) -> Iterator[Path]:
    """What a compaction says about itself."""
    browser.open("/assets/shop/clicks/dv/clicks_optimize")
    browser.see("rows_purged", "dvs_removed", "24 files with more than 5 % of the rows deleted")
    for key in ("reason", "plan"):
        browser.scroll_to(key)
        yield browser.shoot(f"optimize-{key}")


def graph(browser: Browser) -> Path:
    """Tables with their maintenance below them."""
    browser.open(f"/asset-groups~{quote(_GRAPH, safe='')}/")
    # The list beside the graph has only the last parts of keys, and takes a quarter of the page.
    browser.page.get_by_placeholder("Jump to").locator("xpath=following::button[1]").click()
    browser.drag((1150, 850), (1290, 850))
    browser.see("orders", "payments", "optimize", "vacuum", "manifest", "Observed", "14 partitions")
    return browser.shoot("asset-graph")


def _observed(dagster: Dagster, times: int) -> None:
    """Wait until the sensor has seen that many versions of ``returns``."""
    wait_for(
        f"observation {times} of shop/returns",
        lambda: dagster.observations("shop/returns") >= times,
        seconds=_TICK_SECONDS,
    )


def _done(dagster: Dagster, asset: str) -> bool:
    """Whether a run for this asset has ended well, and no run is on its way. Raises RuntimeError if any failed."""
    runs = dagster.runs()
    failed = [run for run in runs if run["status"] == "FAILURE"]
    if failed:
        raise RuntimeError(f"failed runs: {failed}")
    return all(run["status"] == "SUCCESS" for run in runs) and any(asset in run["assets"] for run in runs)
