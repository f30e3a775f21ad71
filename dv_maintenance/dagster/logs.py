"""The package's log lines in Dagster's own log of a run or of a sensor's tick."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from dv_maintenance.dagster.internals import DagsterLogHandler
from dv_maintenance.errors import redacted

_PACKAGE: Final = "dv_maintenance"
# A code server evaluates several sensors at once; each gets only its own lines.
_shown_in: ContextVar[logging.Logger | None] = ContextVar("dv_maintenance_log", default=None)


class _Forward(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        target = _shown_in.get()
        if target is not None and not _managed():
            target.log(record.levelno, redacted(record.getMessage()))


_FORWARD: Final = _Forward()


def _managed() -> bool:
    """Whether Dagster collects the package's lines itself: ``python_logs: managed_python_loggers`` in dagster.yaml."""
    handlers = [*logging.getLogger(_PACKAGE).handlers, *logging.getLogger().handlers]
    return any(isinstance(handler, DagsterLogHandler) for handler in handlers)


class _Omissions(logging.Filter):
    """Without Dagster's line on checks that a step leaves out: ``fsck`` in each observation, all but ``readable`` of a
    table that can't be read.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        return "did not yield or return expected outputs" not in record.getMessage()


_OMISSIONS: Final = _Omissions()


def without_omissions(log: logging.Logger) -> None:
    """Leave these lines out of a step's log."""
    log.addFilter(_OMISSIONS)


@contextmanager
def shown_in(log: logging.Logger) -> Iterator[None]:
    """Send INFO and above of ``dv_maintenance`` to ``log`` too, while it is open."""
    package = logging.getLogger(_PACKAGE)
    if _FORWARD not in package.handlers:
        package.addHandler(_FORWARD)
    if package.getEffectiveLevel() > logging.INFO:
        package.setLevel(logging.INFO)
    token = _shown_in.set(log)
    try:
        yield
    finally:
        _shown_in.reset(token)
