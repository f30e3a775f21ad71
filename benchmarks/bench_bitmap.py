"""The bitmap test of Paimon's deletion vector proposal (PIP-16, section 1.4) on our DV core, beside its Java figures.

    python benchmarks/bench_bitmap.py [rows ...]

Rows are deleted at random, 20, 50 or 80 % of them, as the proposal has it. Its figures are of another machine, so a
ratio (Java / ours; above 1 we are faster) says more about the order of magnitude than about percents. What is done:

- add: deleted positions, as NumPy arrays of one stretch of rows after the other, become one DV. "mask": the same from
  the mask of deleted rows that a reader needs, a bit for each row.
- write, read: one index file's DV in the encoding that holds the positions, with its checksum; reading checks the bytes
  against each other. Size: of the file.
- contains: the proposal asked for each deleted position by itself. Here every row is asked for, deleted or not, as
  readers do: a keep-mask for each row group.

2,000,000,000 rows take 2 GB of memory, and five minutes.
"""

import resource
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from dv_maintenance.dv import DeletionVector, paimon

RATES = (20, 50, 80)
ROW_GROUP = 131_072
STRETCH = 1 << 24
T = TypeVar("T")


class Figures(NamedTuple):
    """Milliseconds, and megabytes of the file."""

    add: float
    write: float
    read: float
    size: float
    contains: float


# Of the proposal, by rate and rows.
JAVA = {
    (20, 2_000_000): Figures(43, 5, 26, 0.24, 7),
    (50, 2_000_000): Figures(47, 3, 52, 0.24, 5),
    (80, 2_000_000): Figures(57, 1, 24, 0.24, 8),
    (20, 20_000_000): Figures(450, 13, 247, 2.4, 49),
    (50, 20_000_000): Figures(629, 6, 222, 2.4, 76),
    (80, 20_000_000): Figures(1040, 5, 222, 2.4, 121),
    (20, 200_000_000): Figures(5079, 44, 2262, 24, 442),
    (50, 200_000_000): Figures(9469, 43, 2773, 24, 1107),
    (80, 200_000_000): Figures(13625, 38, 2233, 24, 1799),
    (20, 2_000_000_000): Figures(93753, 568, 22290, 239, 5747),
    (50, 2_000_000_000): Figures(166070, 679, 22339, 239, 14735),
    (80, 2_000_000_000): Figures(218233, 553, 22684, 239, 26504),
}


def timed(work: Callable[[], T]) -> tuple[T, float]:
    start = time.perf_counter()
    found = work()
    return found, (time.perf_counter() - start) * 1000


def stretches(rows: int) -> list[tuple[int, int]]:
    return list(pairwise([*range(0, rows, STRETCH), rows]))


def deleted_bits(rows: int, rate: int) -> np.ndarray:
    """A bit for each row, least significant first."""
    generator = np.random.default_rng(7)
    packed = np.zeros((rows + 7) // 8, np.uint8)
    for start, stop in stretches(rows):
        chosen = generator.integers(0, 100, stop - start, np.uint8) < rate
        packed[start // 8 : (stop + 7) // 8] = np.packbits(chosen, bitorder="little")
    return packed


def positions(packed: np.ndarray, start: int, stop: int) -> np.ndarray:
    bits = np.unpackbits(packed[start // 8 : (stop + 7) // 8], count=stop - start, bitorder="little")
    return (np.flatnonzero(bits) + start).astype(np.uint64)


def added(packed: np.ndarray, rows: int) -> tuple[DeletionVector, float]:
    """The DV of all positions, and the time without finding them."""
    parts, total = list[DeletionVector](), 0.0
    for start, stop in stretches(rows):
        found = positions(packed, start, stop)
        part, spent = timed(lambda: DeletionVector.from_positions(found))  # noqa: B023 - called at once
        parts.append(part)
        total += spent
    begin = time.perf_counter()
    while len(parts) > 1:
        joined = [one | other for one, other in zip(parts[::2], parts[1::2], strict=False)]
        parts = joined + parts[len(joined) * 2 :]
    return parts[0], total + (time.perf_counter() - begin) * 1000


def ask(dv: DeletionVector, rows: int) -> int:
    masks = (dv.keep_mask(start, min(start + ROW_GROUP, rows)) for start in range(0, rows, ROW_GROUP))
    return sum(mask.true_count for mask in masks)


def measure(rows: int, rate: int) -> tuple[Figures, float]:
    """Ours, and the milliseconds from a mask."""
    packed = deleted_bits(rows, rate)
    mask = pa.Array.from_buffers(pa.bool_(), rows, [None, pa.py_buffer(packed)])
    dv, adding = added(packed, rows)
    masked, masking = timed(lambda: DeletionVector.from_mask(mask))
    assert masked == dv
    del masked
    bits = 32 if rows <= 2**31 else 64
    (file,), writing = timed(lambda: paimon.pack([dv], bits))
    (at,) = file.ranges
    back, reading = timed(lambda: paimon.decode_at(file.data, at.offset, at.length))
    assert back == dv
    kept, asking = timed(lambda: ask(back, rows))
    assert kept == rows - len(dv)
    return Figures(adding, writing, reading, len(file.data) / 2**20, asking), masking


def main() -> None:
    names = ("add", "write", "read", "contains")
    print(f"{'':20} |" + "|".join(f" {name + ', ms':>22} " for name in names) + f"| {'size, MB':>13} | {'mask, ms':>8}")
    print(f"{'deleted of rows':>20} |" + "|".join(f" {'ours':>7} {'Java':>6} {'ratio':>7} " for _ in names))
    for rows in [int(text.replace(",", "").replace("_", "")) for text in sys.argv[1:]] or [2_000_000, 20_000_000]:
        for rate in RATES:
            ours, masking = measure(rows, rate)
            java = JAVA.get((rate, rows))
            cells = []
            for name in names:
                own, theirs = getattr(ours, name), getattr(java, name, None)
                cells.append(f" {own:7.1f} {theirs or '-':>6} {f'{theirs / own:.1f}x' if theirs else '-':>7} ")
            size = f"{ours.size:6.2f} {java.size if java else '-':>6}"
            print(f"{f'{rate}% of {rows:,}':>20} |" + "|".join(cells) + f"| {size} | {masking:8.1f}", flush=True)
    print(f"most memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MB")


if __name__ == "__main__":
    main()
