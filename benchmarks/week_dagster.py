"""A week of accidents under a real Dagster: is everything that is due maintained, and every wait explained?

    python benchmarks/week_dagster.py [--formats delta,lance,...] [--only DAY ...] [--patience SECONDS] [--keep]

Two code locations, daemon and webserver on this machine, with the settings of ``sensors/dagster.yaml``; a process per
run, the local engine. Runs are canceled on the page, processes are killed, folders vanish, files are damaged, rights
are taken away, tables are created again, a deadline can't be kept, the host goes down, and two locations watch one
table. See ``week``. Prints what happened; ends with 1 if a claim fails.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
from week import Lake, LakeTable, Run, Week, main, mentions

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from support.dagster_deployment import Deployment, eventually

SENSOR = "maintenance"
TWIN = "twin"
_STATES = {
    dg.DagsterRunStatus.SUCCESS: "success",
    dg.DagsterRunStatus.FAILURE: "failed",
    dg.DagsterRunStatus.CANCELED: "canceled",
}
_UNFINISHED = [status for status in dg.DagsterRunStatus if status not in _STATES]
_ASKED = [status for status in _UNFINISHED if status != dg.DagsterRunStatus.NOT_STARTED]  # what can be canceled
_JOBS = ("optimize", "vacuum")


class Dagster:
    grace = 20.0
    shared = "maintains .*, too"
    forgetful = False

    def __init__(self, folder: Path, lake: Lake) -> None:
        self.lake = lake
        self.deployment = Deployment(
            folder, lake.file, sensors={SENSOR: ["optimize", "vacuum"]}, others={TWIN: lake.twin}
        )
        self._texts: dict[tuple[str, int], tuple[float, str]] = {}

    def start(self) -> None:
        self.deployment.start()
        if not list(self.deployment.ticks()):
            self.deployment.switch_on(SENSOR)
        begun = time.time()
        eventually("both sensors look at the tables", lambda: len(set(self._ended(begun))) == 2)

    def stop(self) -> None:
        self.deployment.stop()

    def crash(self) -> None:
        self.deployment.crash()

    def after_crash(self, week: Week, table: LakeTable, since: float) -> None:
        """Dagster believes the run to be at work. Hours later the sensor says how long it has been silent; a day later
        Dagster has ended it.
        """
        run = self.active()[table.name]
        self.later(2 * 3600)
        week.said([table], since - 2 * 3600, f"{run[:8]}.*(silent|logged nothing)")
        self.later(23 * 3600)

    def runs(self) -> list[Run]:
        return [run for record in reversed(self.deployment.instance.get_run_records()) for run in self._of(record)]

    def _of(self, record: Any) -> Iterator[Run]:
        """A shared run counts for each of its tables."""
        run = record.dagster_run
        did = self.deployment.materialized(run.run_id)
        steps = [(step.start, step.end) for step in self.deployment.steps(run.run_id)]
        for asset in run.asset_selection or ():
            *table, _, job = asset.path
            shown = did.get(asset.to_user_string())
            yield Run(
                run.run_id,
                "/".join(table),
                job.rpartition("_")[2],
                _STATES.get(run.status, "active"),  # type: ignore[arg-type]
                record.create_timestamp.timestamp(),
                steps,
                None if shown is None else _worked(shown),
            )

    def active(self) -> dict[str, str]:
        runs = self.deployment.instance.get_runs(dg.RunsFilter(statuses=_UNFINISHED))
        return {"/".join(asset.path[:-2]): run.run_id for run in runs for asset in run.asset_selection or ()}

    def hold(self, run: str) -> None:
        self._signal(run, signal.SIGSTOP)

    def release(self, run: str) -> None:
        self._signal(run, signal.SIGCONT)

    def cancel(self, run: str) -> None:
        # The page waits for the process, which has to end itself.
        threading.Timer(1, self.release, [run]).start()
        self.deployment.cancel(run)
        self.deployment.finished(run)

    def cancel_early(self, table: LakeTable, job: str) -> bool:
        known = {run.run_id for run in self.deployment.instance.get_runs()}

        def asked() -> str | None:
            runs = self.deployment.instance.get_runs(dg.RunsFilter(statuses=_ASKED))
            new = (run for run in runs if run.run_id not in known)
            key = dg.AssetKey([table.name, "dv", f"{table.name}_{job}"])
            return next((run.run_id for run in new if key in (run.asset_selection or ())), None)

        run = eventually(f"a run of {job} on {table.name} is asked for", asked, every=0.02)
        if self.deployment.run(run).status == dg.DagsterRunStatus.QUEUED:
            self.deployment.instance.run_coordinator.cancel_run(run)  # what the page would do, a second later
        else:
            self.deployment.cancel(run)
        return self.deployment.finished(run).status == dg.DagsterRunStatus.CANCELED

    def kill(self, run: str) -> None:
        self._signal(run, signal.SIGKILL)
        self.deployment.finished(run)

    def _signal(self, run: str, number: int) -> None:
        process = self.deployment.process_of(run)
        assert process is not None, run
        assert self.deployment.owns(process), process
        os.kill(process, number)

    def words(self, table: str, since: float) -> list[str]:
        found = (self._about(table, text) for _, text in self._ticks(since))
        return [word for word in found if word]

    def last_word(self, table: str, since: float) -> str:
        """Of both locations, for the table that both watch."""
        del since
        newest = dict(self._ticks(0))
        return "; ".join(filter(None, (self._about(table, text) for text in newest.values())))

    def later(self, seconds: float) -> None:
        self.deployment.later(seconds)

    def data_versions(self, table: str) -> set[str]:
        records = self.deployment.instance.fetch_observations(dg.AssetKey(table), limit=1000).records
        tags = (record.asset_observation.tags for record in records if record.asset_observation)
        return {found["dagster/data_version"] for found in tags if "dagster/data_version" in found}

    def checks(self, table: str) -> dict[str, bool]:
        keys = [dg.AssetCheckKey(dg.AssetKey(table), name) for name in ("readable", "erase_within")]
        found = self.deployment.instance.event_log_storage.get_latest_asset_check_execution_by_key(keys)
        return {key.name: record.status.value == "SUCCEEDED" for key, record in found.items()}

    def claims(self) -> Iterator[tuple[str, list[str]]]:
        ticks = list(self.deployment.ticks())
        yield "no tick failed", [str(tick.error)[:500] for tick in ticks if tick.status.value == "FAILURE"]

    def _ended(self, since: float) -> list[str]:
        return [location for location, _ in self._ticks(since)]

    def _ticks(self, since: float) -> list[tuple[str, str]]:
        """Code location and text of ticks that began since then and have ended, oldest first."""
        for tick in self.deployment.ticks():
            key = tick.selector_id, tick.tick_id
            if key not in self._texts and tick.end_timestamp:
                self._texts[key] = tick.timestamp, self._text(tick)
        found = ((at, selector, text) for (selector, _), (at, text) in self._texts.items() if at >= since)
        return [(selector, text) for _, selector, text in sorted(found)]

    def _text(self, tick: Any) -> str:
        text = self.deployment.said(tick)
        for run_id in tick.run_ids:
            run = self.deployment.instance.get_run_by_id(run_id)
            for asset in (run and run.asset_selection) or ():
                text += f"\n{'/'.join(asset.path[:-2])}: run {run_id[:8]}, {_tags(run)}"
        return text

    def _about(self, table: str, text: str) -> str:
        """The sentences that name it."""
        names = "|".join((*self.lake.tables, Lake.OTHER))
        parts = (part for line in text.splitlines() for part in re.split(rf"; (?=(?:{names}): )", line))
        return "; ".join(part for part in parts if mentions(part, table))


def _worked(shown: dict[str, Any]) -> bool:
    if "files_deleted" in shown:
        return bool(shown["files_deleted"])
    return bool(shown["version_after"] != shown["version_before"])


def _tags(run: dg.DagsterRun | None) -> str:
    return "" if run is None else f"{run.tags.get('dv/jobs')} at version {run.tags.get('dv/version')}"


if __name__ == "__main__":
    sys.exit(main(__doc__, lambda folder, lake: Dagster(folder / "deployment", lake)))
