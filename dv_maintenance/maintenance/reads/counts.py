"""Reads of many tables by the hour: small enough to keep as JSON, exact enough for files that live for days."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dv_maintenance.maintenance.reads.model import Reads
from dv_maintenance.maintenance.reads.spark_queries import Scan
from dv_maintenance.tables.model import parse_partition, partition_name

_HOUR: Final = 3_600_000
_KEPT: Final = 90 * 24 * _HOUR


@dataclass(slots=True)
class HourlyReads:
    """Reads of one table, by hour since the epoch.

    whole : of the whole table.
    selective : of some of its partitions, each read once.
    partitions : the same, once for each partition that was read.
    """

    whole: dict[int, int] = field(default_factory=dict)
    selective: dict[int, int] = field(default_factory=dict)
    partitions: dict[str, dict[int, int]] = field(default_factory=dict)

    def add(self, scan: Scan) -> None:
        hour = scan.time // _HOUR
        if scan.partitions is None:
            self.whole[hour] = self.whole.get(hour, 0) + 1
            return
        self.selective[hour] = self.selective.get(hour, 0) + 1
        for name in scan.partitions:
            hours = self.partitions.setdefault(name, {})
            hours[hour] = hours.get(hour, 0) + 1

    def recent(self, until: int) -> HourlyReads:
        """Without what is older than 90 days."""
        first = (until - _KEPT) // _HOUR
        kept = {name: _since(hours, first) for name, hours in self.partitions.items()}
        return HourlyReads(
            _since(self.whole, first),
            _since(self.selective, first),
            {name: hours for name, hours in kept.items() if hours},
        )

    def reads(self, since: int, until: int) -> Reads:
        """The reads of an hour are spread evenly over it, within the observed time."""
        return Reads.observed(
            "spark event logs",
            _times(self.whole, since, until),
            max(since, until - _KEPT),
            until,
            {name: _times(hours, since, until) for name, hours in self.partitions.items()},
            selective=_times(self.selective, since, until),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "whole": _to_json(self.whole),
            "selective": _to_json(self.selective),
            "partitions": {name: _to_json(hours) for name, hours in self.partitions.items()},
        }

    @classmethod
    def from_json(cls, data: Any) -> HourlyReads:
        """Raises AttributeError, KeyError, TypeError, ValueError."""
        # States of older versions encode more characters of a name.
        partitions = {
            partition_name(parse_partition(str(name))): _from_json(hours) for name, hours in data["partitions"].items()
        }
        return cls(_from_json(data["whole"]), _from_json(data["selective"]), partitions)


def _since(hours: dict[int, int], first: int) -> dict[int, int]:
    return {hour: reads for hour, reads in hours.items() if hour >= first}


def _times(hours: dict[int, int], since: int, until: int) -> NDArray[np.int64]:
    found = [hour * _HOUR + (2 * np.arange(reads) + 1) * _HOUR // (2 * reads) for hour, reads in hours.items()]
    # A read is counted after the start of an interval.
    times: NDArray[np.int64] = np.concatenate([np.zeros(0, np.int64), *found])
    return times.clip(since + 1, until)


def _to_json(hours: dict[int, int]) -> dict[str, int]:
    return {str(hour): reads for hour, reads in sorted(hours.items())}


def _from_json(data: Any) -> dict[int, int]:
    return {int(hour): int(reads) for hour, reads in data.items()}
