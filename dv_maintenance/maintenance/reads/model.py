"""Reads of a table over time, as columns: what the meter multiplies a file's overhead by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Self

import numpy as np
from numpy.typing import NDArray

from dv_maintenance.units import DAY

Source = Literal["spark event logs", "downstream assets", "declared"]

# A declared rate that differs from what was observed by more than this factor decides worse than a fixed ratio does.
_TOLERANCE: Final = 3.0
_NONE: Final[NDArray[np.int64]] = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Reads:
    """When a table was read. Immutable.

    source : where this is known from.
    since, until : epoch milliseconds that the observations cover; both 0 for a declared rate.
    times : of reads of the whole table, epoch milliseconds, sorted.
    selective : of reads of some partitions, each once, epoch milliseconds, sorted.
    by_partition : the same reads by partition, as ``partition_name`` writes it. A name may leave out columns: it
        matches every partition that has its values.
    rate : reads per day of every file; 0 if the reads were observed.
    """

    source: Source
    since: int
    until: int
    times: NDArray[np.int64]
    selective: NDArray[np.int64]
    by_partition: Mapping[str, NDArray[np.int64]]
    rate: float = 0.0
    _columns: Mapping[tuple[str, ...], Mapping[tuple[str | None, ...], str]] = field(default_factory=dict, repr=False)

    @classmethod
    def declared(cls, per_day: float) -> Self:
        """A constant rate of reads of the whole table."""
        return cls("declared", 0, 0, _NONE, _NONE, {}, float(per_day))

    @classmethod
    def observed(
        cls,
        source: Source,
        times: NDArray[np.int64],
        since: int,
        until: int,
        by_partition: Mapping[str, NDArray[np.int64]] | None = None,
        *,
        selective: NDArray[np.int64] | None = None,
    ) -> Self:
        """Reads that were seen between ``since`` and ``until``; times need not be sorted.

        selective : times of the reads in ``by_partition``, each once although it may have read several partitions; by
            default every time in ``by_partition`` is a separate read.
        """
        names = {name: np.sort(each) for name, each in (by_partition or {}).items()}
        if selective is None:
            selective = np.concatenate([_NONE, *names.values()])
        return cls(source, since, until, np.sort(times), np.sort(selective), names, 0.0, _by_columns(names))

    def count(
        self, start: NDArray[np.int64], end: NDArray[np.int64], names: Sequence[str], codes: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Reads of each file in ``(start, end]``, epoch milliseconds: those of the whole table and those of its
        partition. The mean rate is assumed before ``since`` and after ``until``.

        names, codes : file ``i`` is in partition ``names[codes[i]]``.
        """
        end = np.maximum(start, end)
        if self.source == "declared":
            return np.asarray((end - start) * (self.rate / DAY), np.float64)
        counts = self._of(self.times, start, end)
        if not self._columns or not len(codes):
            return counts
        parts = [dict(part.partition("=")[::2] for part in name.split("/")) for name in names]
        for columns, keys in self._columns.items():
            numbers = {values: number for number, values in enumerate(keys)}
            found = [numbers.get(tuple(map(part.get, columns)), -1) for part in parts]
            number = np.array(found, np.int64)[codes]
            files = np.flatnonzero(number >= 0)
            files = files[np.argsort(number[files], kind="stable")]
            used, begins = np.unique(number[files], return_index=True)
            read = list(keys.values())
            for key, group in zip(used.tolist(), np.split(files, begins[1:]), strict=False):
                counts[group] += self._of(self.by_partition[read[key]], start[group], end[group])
        return counts

    def per_day(self, now: int, days: float = 7) -> float:
        """Mean number of reads of the table, or of a part of it, per day over the ``days`` before ``now``."""
        if self.source == "declared":
            return self.rate
        start, end = np.array([now - round(days * DAY)]), np.array([now])
        return float((self._of(self.times, start, end) + self._of(self.selective, start, end))[0]) / days

    def _of(self, times: NDArray[np.int64], start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.float64]:
        """How many of the times are in ``(start, end]``, and how many more are expected outside the observation."""
        seen = np.searchsorted(times, end, "right") - np.searchsorted(times, start, "right")
        inside = np.clip(end, self.since, self.until) - np.clip(start, self.since, self.until)
        # A few minutes of logs say nothing of a rate per day.
        rate = len(times) / max(self.until - self.since, DAY)
        return seen + rate * (end - start - inside)


def _by_columns(names: Iterable[str]) -> dict[tuple[str, ...], dict[tuple[str | None, ...], str]]:
    """Partition names by their columns, then by their values: a partition is matched by one look-up for each set of
    columns.
    """
    found: dict[tuple[str, ...], dict[tuple[str | None, ...], str]] = {}
    for name in names:
        parts = sorted(part.partition("=")[::2] for part in name.split("/") if part)
        found.setdefault(tuple(part[0] for part in parts), {})[tuple(part[1] for part in parts)] = name
    return found


def contradiction(declared: float, observed: Reads, now: int) -> str | None:
    """One sentence if a declared rate differs from what was observed by more than a factor of three; else ``None``."""
    seen = observed.per_day(now)
    if declared <= seen * _TOLERANCE and seen <= declared * _TOLERANCE:
        return None
    return f"reads_per_day is {declared:g}, but {observed.source} show {seen:.3g} reads a day"
