"""Progress of a run in the run's own log: an occasional line, not one per rewrite."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

# Each line is an event in Dagster's storage; a big run finishes thousands of rewrites.
_SECONDS_BETWEEN = 10.0


def progress_log(log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> Callable[[int, int], None]:
    """The callback of ``apply``: it receives the number of finished and of planned rewrites."""
    said = clock()

    def tell(done: int, total: int) -> None:
        nonlocal said
        now = clock()
        if done == total or now - said >= _SECONDS_BETWEEN:
            said = now
            log.info("%s of %s rewrites done", f"{done:,}", f"{total:,}")

    return tell
