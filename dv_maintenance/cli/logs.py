"""The package's log on stderr: warnings, with ``-v`` what is being done, with ``-vv`` the details."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dv_maintenance.cli.output import Output

__all__ = ["logged"]

_LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)


class _OnStderr(logging.Handler):
    def __init__(self, out: Output) -> None:
        super().__init__()
        self.out = out

    def emit(self, record: logging.LogRecord) -> None:
        try:
            # Whatever sys.stderr is by then; storage options and secrets in URLs never show.
            sys.stderr.write(self.out.redacted(self.format(record)) + "\n")
        except Exception:  # noqa: BLE001 (a log that can't be written must not end a run)
            self.handleError(record)


@contextmanager
def logged(out: Output, verbose: int) -> Iterator[None]:
    """Within it, the package's log goes to stderr. ``verbose``: how often ``-v`` was given."""
    package = logging.getLogger("dv_maintenance")
    before = package.level
    handler = _OnStderr(out)
    name = " %(name)s:" if verbose > 1 else ""
    handler.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)s{name} %(message)s", "%H:%M:%S"))
    package.setLevel(_LEVELS[min(verbose, 2)])
    package.addHandler(handler)
    try:
        yield
    finally:
        package.removeHandler(handler)
        package.setLevel(before)
