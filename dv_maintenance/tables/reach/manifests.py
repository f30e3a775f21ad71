"""The files that a snapshot reaches through its manifests.

Snapshots share manifests, so each manifest becomes two arrays of numbers once: of the files that it adds, and of those
that it deletes. A file that several live entries share, as one file with many deletion vectors, has one number, and
is live while any of them is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ManifestFiles:
    """Numbers of the files that a manifest adds and deletes."""

    adds: Ids
    deletes: Ids


def live(manifests: Iterable[ManifestFiles], known: int) -> Ids:
    """Numbers of the files that have more additions than deletions, sorted. ``known``: how many files have numbers."""
    counts = np.zeros(known, np.int32)
    for each in manifests:
        np.add.at(counts, each.adds, 1)
        np.subtract.at(counts, each.deletes, 1)
    return np.flatnonzero(counts > 0)


def mentioned(manifests: Iterable[ManifestFiles]) -> Ids:
    """Numbers of all files, sorted."""
    parts = [part for each in manifests for part in (each.adds, each.deletes)]
    return np.unique(np.concatenate(parts)) if parts else np.zeros(0, np.int64)
