"""Files of videos of Paimon: whole encoded videos, and for each row the video and the frame that it is.

Format: ``VideoFormatWriter`` of pypaimon 2.1, version 1. Videos come first, then an index of the key frames of each,
which may be empty. Then five lists of numbers as ``files.blob`` has them: the lengths of the videos and of these
indexes; and, of runs of rows that are consecutive frames of one video: rows, the video (its number, null or the value
of an older file) and the first frame. The footer has the lengths of the five, a magic number and the version.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from dv_maintenance.errors import DamagedTableError, UnsupportedFeatureError
from dv_maintenance.files.blob import NULL, PLACEHOLDER, copy_bytes, delta_varint_bytes, delta_varints

if TYPE_CHECKING:
    import pyarrow as pa

_MAGIC: Final = 0x4F454449
_VERSION: Final = 1
_FOOTER: Final = struct.Struct("<IIIIIIB")


@dataclass(frozen=True, slots=True)
class Run:
    """Rows that are consecutive frames of a video.

    video : its number, ``blob.NULL`` or ``blob.PLACEHOLDER``.
    """

    rows: int
    video: int
    first: int


@dataclass(frozen=True, slots=True)
class _Index:
    """``videos``, ``keys``: where the bytes of each video are, and those of the index of its key frames."""

    videos: list[range]
    keys: list[range]
    runs: list[Run]


def cut(file: pa.NativeFile, rows: range, of: int, sink: Any) -> None:
    """Write some rows as a file of their own: the same frames, with the whole videos that these are of.

    of : how many rows the file has.

    Raises
    ------
    DamagedTableError : its index is damaged, or it has another number of rows.
    UnsupportedFeatureError : it has another version.
    """
    index = _read(file)
    if sum(run.rows for run in index.runs) != of:
        raise DamagedTableError(f"it has {sum(run.rows for run in index.runs)} rows, not {of}")
    runs = runs_within(index.runs, rows)
    kept = sorted({run.video for run in runs if run.video >= 0})
    number = {old: new for new, old in enumerate(kept)} | {NULL: NULL, PLACEHOLDER: PLACEHOLDER}
    for places in (index.videos, index.keys):
        for old in kept:
            copy_bytes(file, places[old], sink)
    lists = [
        [len(index.videos[old]) for old in kept],
        [len(index.keys[old]) for old in kept],
        [run.rows for run in runs],
        [number[run.video] for run in runs],
        [run.first for run in runs],
    ]
    stored = [delta_varint_bytes(each) for each in lists]
    sink.write(b"".join(stored) + _FOOTER.pack(*map(len, stored), _MAGIC, _VERSION))


def runs_within(runs: Sequence[Run], rows: range) -> list[Run]:
    """The runs of some of the rows.

    >>> runs_within([Run(4, 0, 10), Run(2, NULL, 0)], range(1, 5))
    [Run(rows=3, video=0, first=11), Run(rows=1, video=-1, first=0)]
    """
    found, begin = [], 0
    for run in runs:
        start, stop = max(rows.start - begin, 0), min(rows.stop - begin, run.rows)
        if start < stop:
            found.append(Run(stop - start, run.video, run.first + start if run.video >= 0 else run.first))
        begin += run.rows
    return found


def _read(file: pa.NativeFile) -> _Index:
    size = file.size()
    footer = file.read_at(_FOOTER.size, size - _FOOTER.size) if size >= _FOOTER.size else b""
    if len(footer) != _FOOTER.size:
        raise DamagedTableError("it has no index")
    *lengths, magic, version = _FOOTER.unpack(footer)
    if magic != _MAGIC:
        raise DamagedTableError("it does not end as a file of videos does")
    if version != _VERSION:
        raise UnsupportedFeatureError(
            f"a file of videos has format version {version}; this release reads only version {_VERSION}",
            features=(f"video version {version}",),
            next_step="use a newer release of this tool, or Paimon itself",
        )
    end = size - _FOOTER.size - sum(lengths)
    if end < 0:
        raise DamagedTableError("its indexes are longer than the file")
    data = file.read_at(sum(lengths), end)
    parts = [data[stop - length : stop] for length, stop in zip(lengths, np.cumsum(lengths).tolist(), strict=True)]
    videos, keys, rows, numbers, firsts = (delta_varints(each).tolist() for each in parts)
    if len(videos) != len(keys) or not len(rows) == len(numbers) == len(firsts):
        raise DamagedTableError("its indexes have different lengths")
    runs = [Run(*each) for each in zip(rows, numbers, firsts, strict=True)]
    right = all(length > 0 for length in videos) and all(length >= 0 for length in keys)
    if not right or sum(videos) + sum(keys) != end:
        raise DamagedTableError("its index does not fit its videos")
    if any(run.rows <= 0 or not PLACEHOLDER <= run.video < len(videos) or run.first < 0 for run in runs):
        raise DamagedTableError("its index names frames that it does not have")
    places = _places([*videos, *keys])
    return _Index(places[: len(videos)], places[len(videos) :], runs)


def _places(lengths: Sequence[int]) -> list[range]:
    """Where parts of these lengths are that follow each other."""
    found, begin = [], 0
    for length in lengths:
        found.append(range(begin, begin + length))
        begin += length
    return found
