"""What does an inspection cost after a few more commits, against a full inspection of the same version?

    python benchmarks/bench_inspection.py [--files 1000000] [--commits 1000] [--new 10] [--actions 100] [--runs 5]

Builds the log of a healthy table, where few files are worth a rewrite (no data files: nothing here reads any), and
then, in turns and in one process, as a sensor's tick does:

* full: the table was never seen by this process,
* next: the process saw it ``--new`` commits ago.

Prints the medians of wall and CPU time, the ratio, and the memory of what is kept. Both inspections must find the same.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time

from simulated_log import SimulatedLog

from dv_maintenance.service.cursor import TableState
from dv_maintenance.service.inspection import Inspection
from dv_maintenance.service.kept import kept_snapshots
from dv_maintenance.service.observe import Observation, Observer
from dv_maintenance.service.tables_file import TableSettings


class Sensor:
    """Inspects one table from tick to tick."""

    def __init__(self, place: str) -> None:
        self.watched = TableSettings(path=place, name="table", jobs=("optimize",))
        self.restart()

    def restart(self) -> None:
        """As in a new process."""
        kept_snapshots.cache_clear()
        self.observer = Observer(data_versions=True, checks=True)
        self.last = TableState(Inspection("table"))

    def inspect(self) -> tuple[Observation, float, float]:
        wall, cpu = time.perf_counter(), time.process_time()
        found = self.observer.observe(self.watched, self.last, self.observer.probe(self.watched, self.last), busy=False)
        times = time.perf_counter() - wall, time.process_time() - cpu
        self.last = TableState(found.inspection, found.data_version, True)
        return found, *times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=1_000_000)
    parser.add_argument("--commits", type=int, default=1000)
    parser.add_argument("--new", type=int, default=10)
    parser.add_argument("--actions", type=int, default=100, help="per commit")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--keep", help="build the table here, or use the one that is there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = options.keep or os.path.join(folder, "table")
        if not os.path.isdir(place):
            log = SimulatedLog(place, options.files, size=300_000_000, deleted=52)
            for _ in range(options.commits + options.new):
                log.commit(options.actions)
        commits, aside = os.path.join(place, "_delta_log"), os.path.join(folder, "aside")
        newest = sorted(name for name in os.listdir(commits) if name.endswith(".json"))[-options.new :]
        os.makedirs(aside)
        sensor = Sensor(place)
        sensor.inspect()  # imports
        times: dict[str, list[tuple[float, float]]] = {"full": [], "next": []}
        for _ in range(options.runs):
            sensor.restart()
            whole, *full = sensor.inspect()
            times["full"].append((full[0], full[1]))
            for name in newest:
                shutil.move(os.path.join(commits, name), aside)
            sensor.restart()
            sensor.inspect()
            for name in newest:
                shutil.move(os.path.join(aside, name), commits)
            found, *new = sensor.inspect()
            times["next"].append((new[0], new[1]))
            assert found.inspection == whole.inspection
            assert found.inspection.health == whole.inspection.health
        kept = kept_snapshots().bytes >> 20
    print(f"{'inspection':10}{'wall s':>10}{'CPU s':>10}")
    medians = {name: [statistics.median(column) for column in zip(*rows, strict=True)] for name, rows in times.items()}
    for name, (wall, cpu) in medians.items():
        print(f"{name:10}{wall:10.3f}{cpu:10.3f}")
    print(f"{'ratio':10}{medians['next'][0] / medians['full'][0]:10.3f}{medians['next'][1] / medians['full'][1]:10.3f}")
    print(f"kept: {kept} MiB")


if __name__ == "__main__":
    main()
