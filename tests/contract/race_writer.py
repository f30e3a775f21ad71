"""A writer of a Delta table that others write as well: run by threads of test_races.py, and as a process of its own.

``python race_writer.py PLACE FIRST COUNT`` prints the ids that it left in the table, as JSON.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable

from dv_maintenance.storage import FileExistsAlreadyError
from dv_maintenance.testing.backends import DeltaBackend

PATIENCE = 60.0  # seconds that one commit may take to find its version free


def write(place: str, first: int, count: int) -> list[int]:
    """Appends and deletes in turn, ``count`` commits each, of ids from ``first`` on that nobody else has: each append
    has six of them, each delete takes two of every append so far. Returns the ids that must be left.
    """
    backend = DeltaBackend(place)
    mine: list[list[int]] = []
    for number in range(count):
        new = list(range(first + 6 * number, first + 6 * number + 6))
        partition = "ab"[number % 2]
        insist(lambda new=new, partition=partition: backend.append(partition, [(at, partition, "new") for at in new]))
        mine.append(new)
        gone = [ids.pop() for ids in mine for _ in range(2) if ids]
        insist(lambda gone=gone: backend.delete(gone))
    return [number for ids in mine for number in ids]


def insist(commit: Callable[[], object]) -> None:
    """The builder reads, writes and puts its version if it is still free: the simplest writer that can't lose a row."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            commit()
        except FileExistsAlreadyError:
            if time.monotonic() > until:
                raise
            time.sleep(random.uniform(0, 0.02))
        else:
            return


if __name__ == "__main__":
    print(json.dumps(write(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
