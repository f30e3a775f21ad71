"""CPU time and peak memory of a process and all its descendants, from /proc."""

from __future__ import annotations

import os
import threading
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


class Watch(threading.Thread):
    """Looks every 50 ms, so that processes count that nobody waits for (a JVM, Spark's workers).

    cpu : seconds by process.
    peak : bytes resident, of all processes at the same moment; shared pages count once per process.
    workers : peak bytes of each of Spark's Python workers.
    jvms : processes that run Java.
    """

    def __init__(self, root: int) -> None:
        super().__init__(daemon=True)
        self.root = root
        self.cpu: dict[int, float] = {}
        self.workers: dict[int, int] = {}
        self.jvms: set[int] = set()
        self.peak = 0
        self._stop_now = threading.Event()

    def run(self) -> None:
        while not self._stop_now.wait(0.05):
            self.sample()

    def finish(self) -> None:
        self._stop_now.set()
        self.join()

    def sample(self) -> None:
        parents = {int(pid): self._parent(pid) for pid in os.listdir("/proc") if pid.isdigit()}
        # A process whose parent has ended belongs to the system's first one from then on.
        family = {self.root, *self.cpu} & parents.keys()
        while grown := {pid for pid, parent in parents.items() if parent in family} - family:
            family |= grown
        resident = 0
        for pid in family:
            try:
                stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                status = dict(
                    line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
                )
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue  # gone meanwhile
            self.cpu[pid] = (int(stat[11]) + int(stat[12])) / _TICKS
            resident += _bytes(status.get("VmRSS"))
            if os.path.basename(command.split(b"\0")[0]) == b"java":
                self.jvms.add(pid)
            # The daemon only forks; its children are the workers.
            if b"pyspark.daemon" in command and parents.get(pid) in self.cpu and self._is_worker(pid, parents):
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
