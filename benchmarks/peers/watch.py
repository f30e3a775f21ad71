"""CPU time and peak memory of a process and all its descendants, from /proc."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds() -> float:
    """So far, of this process and its descendants: the JVM, Spark's workers, processes that have ended."""
    stats: dict[int, list[str]] = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # gone meanwhile
            stats[int(pid)] = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    family = {os.getpid()}
    while grown := {pid for pid, stat in stats.items() if int(stat[1]) in family} - family:
        family |= grown
    # utime, stime, and both of children that have ended (proc(5)).
    return sum(int(each) for pid in family for each in stats[pid][11:15]) / _TICKS


class Watch(threading.Thread):
    """Looks ten times a second at the memory of a process and its descendants.

    peak : bytes resident, of all processes at the same moment; shared pages count once per process.
    workers : peak bytes of each of Spark's Python workers.
    """

    def __init__(self, root: int) -> None:
        super().__init__(daemon=True)
        self.family = {root}
        self.workers: dict[int, int] = {}
        self.peak = 0
        self._stop_now = threading.Event()

    def run(self) -> None:
        while not self._stop_now.wait(0.1):
            self.sample()

    def finish(self) -> None:
        self._stop_now.set()
        self.join()

    def sample(self) -> None:
        parents = {int(pid): self._parent(pid) for pid in os.listdir("/proc") if pid.isdigit()}
        # A process whose parent has ended belongs to the system's first one from then on.
        self.family &= parents.keys()
        while grown := {pid for pid, parent in parents.items() if parent in self.family} - self.family:
            self.family |= grown
        resident = 0
        for pid in self.family:
            try:
                status = dict(
                    line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
                )
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue  # gone meanwhile
            resident += _bytes(status.get("VmRSS"))
            # The daemon only forks; its children are the workers.
            if b"pyspark.daemon" in command and parents.get(pid) in self.family and self._is_worker(pid, parents):
                self.workers[pid] = _bytes(status.get("VmHWM"))
        self.peak = max(self.peak, resident)

    @staticmethod
    def _is_worker(pid: int, parents: dict[int, int]) -> bool:
        try:
            return b"pyspark.daemon" in Path(f"/proc/{parents[pid]}/cmdline").read_bytes()
        except OSError:
            return False

    @staticmethod
    def _parent(pid: str) -> int:
        try:
            return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return 0


def _bytes(kilobytes: str | None) -> int:
    return int(kilobytes.split()[0]) << 10 if kilobytes else 0
