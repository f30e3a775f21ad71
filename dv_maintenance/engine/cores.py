"""How many threads tasks in this process get."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

_LEAST: Final = 2  # so that one may wait for the storage
_MOST: Final = 4  # larger work has Spark
_MEMORY: Final = 1 << 30  # a task needs a third of that; the rest is for the other threads' share of the process
_CGROUPS: Final = Path("/sys/fs/cgroup")


def default_threads(cgroups: Path = _CGROUPS) -> int:
    """One thread for each core and each GiB of memory that the process may use; at least 2, at most 4.

    cgroups : where Linux shows the limits of a container, of either version.
    """
    return max(_LEAST, min(_MOST, int(_cores(cgroups)), _memory(cgroups) // _MEMORY))


def _cores(cgroups: Path) -> float:
    found: list[float] = [len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1]
    for quota, period in (
        *(text.split() for text in _texts(cgroups / "cpu.max")),
        *zip(_texts(cgroups / "cpu/cpu.cfs_quota_us"), _texts(cgroups / "cpu/cpu.cfs_period_us"), strict=False),
    ):
        with suppress(ValueError):  # "max"; -1 where there is none, too
            found += [int(quota) / int(period)] if int(quota) > 0 else []
    return min(found)


def _memory(cgroups: Path) -> int:
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for text in (*_texts(cgroups / "memory.max"), *_texts(cgroups / "memory/memory.limit_in_bytes")):
        with suppress(ValueError):  # "max"
            found.append(int(text))
    return min(found)


def _texts(path: Path) -> Iterator[str]:
    with suppress(OSError):
        yield path.read_text(encoding="ascii").strip()
