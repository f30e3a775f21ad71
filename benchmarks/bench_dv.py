"""Masks to DV bytes and back: our container-wise paths against plain pyroaring, in one run.

    python benchmarks/bench_dv.py [rows ...]

Prints best-of-n milliseconds and ratios (peer / ours; above 1 we are faster). Peers of "mask -> bytes":
`BitMap64(positions)` with the positions ready ("set"), and with NumPy finding them in the mask first ("all"). Peer of
"bytes -> mask": `to_array`, scattered into a keep-mask; it trusts the bytes, where ours checks them.
"""

import sys
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from dv_maintenance.dv import DeletionVector

DENSITIES = (0.001, 0.01, 0.2, 0.5, 0.8)
ROW_GROUP = 131_072


def best(work: Callable[[], object], repeat: int) -> float:
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times) * 1000


def find_positions(packed: np.ndarray, rows: int) -> np.ndarray:
    return np.flatnonzero(np.unpackbits(packed, count=rows, bitorder="little").view(bool)).astype(np.uint64)


def peer_bytes(positions: np.ndarray) -> bytes:
    bitmap = BitMap64(positions)
    bitmap.run_optimize()
    return bitmap.serialize()


def peer_mask(data: bytes, rows: int) -> np.ndarray:
    keep = np.ones(rows, dtype=bool)
    keep[np.frombuffer(BitMap64.deserialize(data).to_array(), dtype=np.uint64)] = False
    return np.packbits(keep, bitorder="little")


def row_group_masks(dv: DeletionVector, rows: int) -> None:
    for start in range(0, rows, ROW_GROUP):
        dv.keep_mask(start, min(start + ROW_GROUP, rows))


def bench(rows: int, name: str, deleted: np.ndarray) -> None:
    repeat = 9 if rows <= 2_000_000 else 3
    packed = np.packbits(deleted, bitorder="little")
    mask = pa.Array.from_buffers(pa.bool_(), rows, [None, pa.py_buffer(packed)])
    positions = find_positions(packed, rows)
    data = DeletionVector.from_mask(mask).to_portable()
    assert BitMap64.deserialize(data) == BitMap64(positions)
    assert DeletionVector.from_portable(data).keep_mask(0, rows).true_count == rows - len(positions)

    ours = best(lambda: DeletionVector.from_mask(mask).to_portable(), repeat)
    ready = best(lambda: peer_bytes(positions), repeat)
    found = ready + best(lambda: find_positions(packed, rows), repeat)
    to_mask = best(lambda: DeletionVector.from_portable(data).keep_mask(0, rows), repeat)
    to_array = best(lambda: peer_mask(data, rows), repeat)
    dv = DeletionVector.from_portable(data)
    groups = best(lambda: row_group_masks(dv, rows), repeat)
    print(
        f"{rows:>11,} {name:>13} {len(data):>10,} | {ours:7.2f} {ready:8.2f} {ready / ours:6.1f}x {found / ours:6.1f}x"
        f" | {to_mask:7.2f} {to_array:8.2f} {to_array / to_mask:6.1f}x | {groups:7.2f}"
    )


def main() -> None:
    generator = np.random.default_rng(7)
    print(f"{'':36} | {'mask -> bytes':32} | {'bytes -> keep mask':24} | the same by")
    print(
        f"{'rows':>11} {'deleted':>13} {'bytes':>10} | {'ours':>7} {'BitMap64':>8} {'set':>7} {'all':>7}"
        f" | {'ours':>7} {'to_array':>8} {'ratio':>7} | row groups"
    )
    for rows in [int(text) for text in sys.argv[1:]] or [2_000_000, 20_000_000]:
        for density in DENSITIES:
            bench(rows, f"{density:.1%} random", generator.random(rows) < density)
        bench(rows, "50% in blocks", (np.arange(rows) // 100_000) % 2 == 0)
    if "pandas" in sys.modules:
        sys.exit("pandas was imported: a task would pay for that")


if __name__ == "__main__":
    main()
