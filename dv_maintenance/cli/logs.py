"""The package's log on stderr: warnings; with ``-v`` progress, with ``-vv`` details."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dv_maintenance.cli.output import Output

_LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)


class _OnStderr(logging.Handler):
    def __init__(self, out: Output) -> None:
        super().__init__()
        self.out = out

    def emit(self, record: logging.LogRecord) -> None:
        try:
            # Storage options and secrets in URLs are redacted.
            self.out.note(self.out.redacted(self.format(record)))
        except Exception:  # noqa: BLE001 (a failing log must not end a run)
            self.handleError(record)


def _is_news(record: logging.LogRecord) -> bool:
    """Py4J logs a traceback when Ctrl-C meets a call into the JVM."""
    return not str(record.msg).startswith("KeyboardInterrupt while sending command")


@contextmanager
def logged(out: Output, verbose: int) -> Iterator[None]:
    """Send the package's log to stderr while it is open. ``verbose``: the number of ``-v`` options."""
    package = logging.getLogger("dv_maintenance")
    before = package.level
    handler = _OnStderr(out)
    name = " %(name)s:" if verbose > 1 else ""
    handler.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)s{name} %(message)s", "%H:%M:%S"))
    package.setLevel(_LEVELS[min(verbose, 2)])
    package.addHandler(handler)
    root = logging.getLogger()
    root.addFilter(_is_news)
    out.verbose = verbose > 0
    try:
        yield
    finally:
        package.removeHandler(handler)
        root.removeFilter(_is_news)
        package.setLevel(before)
