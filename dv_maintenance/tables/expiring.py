"""Unused files inside the retention, grouped by the day on which a vacuum may delete them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dv_maintenance.tables.model import ExpiringFiles
from dv_maintenance.units import DAY

if TYPE_CHECKING:
    from numpy.typing import NDArray


def by_day(at: NDArray[np.int64] | Any, sizes: NDArray[np.int64] | Any) -> tuple[ExpiringFiles, ...]:
    """The days, in order of time. ``at``: when each file expires, epoch milliseconds. ``sizes``: bytes of each.

    >>> by_day([5, 86_400_000, 3], [10, 1, 1])
    (ExpiringFiles(at=3, files=2, bytes=11), ExpiringFiles(at=86400000, files=1, bytes=1))
    """
    at, sizes = np.asarray(at, np.int64), np.asarray(sizes, np.int64)
    days, which = np.unique(at // DAY, return_inverse=True)
    first = np.full(len(days), np.iinfo(np.int64).max)
    np.minimum.at(first, which, at)
    size = np.zeros(len(days), np.int64)
    np.add.at(size, which, sizes)
    files = np.bincount(which, minlength=len(days))
    return tuple(map(ExpiringFiles, first.tolist(), files.tolist(), size.tolist()))
