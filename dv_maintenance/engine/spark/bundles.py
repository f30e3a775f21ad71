"""Which tasks travel together: a Spark job costs driver and worker 0.3 seconds of CPU time, the rewrite of a small file
a few milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from dv_maintenance.tables.work import RewriteTask

# Estimated seconds of a bundle: long enough for a job to be worth its cost, short enough for results to keep coming.
_LEAST: Final = 1.0
_MOST: Final = 4.0
# With this many bundles for each core, a slow one at the end keeps few cores waiting.
_PER_SLOT: Final = 4
_SLOTS: Final = 16  # of a cluster that does not say how many it has

# Seconds of one core, measured with the in-process engine.
_FILE_ON_DISK: Final = 0.0015
_FILE_IN_STORE: Final = 0.1
_COLUMN: Final = 0.0001
_BYTES_PER_SECOND: Final = 25e6

_PARTS: Final = 16


def seconds_of(task: RewriteTask) -> float:
    """Estimated seconds of a task on one core. Files are opened, created and checked column by column, however small
    they are; requests to an object store wait for an answer.
    """
    sources = task.scan.sources
    files = len(sources) + 1
    each = _FILE_ON_DISK if task.output_uri.startswith("file:") else _FILE_IN_STORE
    size = sum(source.size for source in sources)
    return files * (each + _COLUMN * len(task.scan.schema)) + size / _BYTES_PER_SECOND


def bundled(tasks: Sequence[RewriteTask], slots: int | None) -> list[list[int]]:
    """The tasks, by their numbers, in bundles for one worker each. A task of seconds is a bundle of its own.

    slots : how many bundles run at the same time; ``None``: unknown.
    """
    seconds = [seconds_of(task) for task in tasks]
    enough = min(max(sum(seconds) / (_PER_SLOT * (slots or _SLOTS)), _LEAST), _MOST)
    bundles: list[list[int]] = []
    open_one: list[int] = []
    filled = 0.0
    for number, cost in enumerate(seconds):
        if cost >= enough:
            bundles.append([number])
            continue
        open_one.append(number)
        filled += cost
        if filled >= enough:
            bundles.append(open_one)
            open_one, filled = [], 0.0
    return [*bundles, open_one] if open_one else bundles


def parts_of(bundle: Sequence[int]) -> list[list[int]]:
    """A bundle whose worker died, divided to find the task that killed it: in few rounds, and few jobs for each."""
    size = -(-len(bundle) // _PARTS)
    return [list(bundle[at : at + size]) for at in range(0, len(bundle), size)]
