"""One line on stderr that says what a verb is doing, and how far it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Final

from dv_maintenance.cli.terminal import Terminal

_BAR: Final = 20
_SECONDS_ON_TERMINAL: Final = 0.25
_SECONDS_IN_LOG: Final = 10.0


class Progress:
    """The state of one verb: what it does, rewrites done and planned, rows read, seconds. It is the callback of verbs
    that report progress.

    unit : what is counted instead of rewrites.
    rows : returns the rows read so far, ``None`` if that is unknown.
    """

    def __init__(self, what: str, unit: str = "rewrites", clock: Callable[[], float] = time.monotonic) -> None:
        self.rows: Callable[[], int | None] = lambda: None
        self._what, self._unit, self._clock = what, unit, clock
        self._began = clock()
        self._done, self._total = 0, 0

    def __call__(self, done: int, total: int) -> None:
        """``done`` of ``total`` are finished."""
        self._done, self._total = done, total

    def bar(self) -> str:
        """For a terminal, short enough for 80 columns."""
        total = self._total
        done = [_bar(self._done / total), f"{self._done:,}/{total:,} {self._unit}"] if total else []
        return "  ".join([self._what, *done, *self._facts()])

    def sentence(self) -> str:
        """For a log."""
        done = [f"{self._done:,} of {self._total:,} {self._unit} done"] if self._total else []
        return f"{self._what}: {', '.join([*done, *self._facts()])}"

    def _facts(self) -> Iterator[str]:
        rows = self.rows()
        if rows:
            yield f"{rows:,} rows read"
        if self._total and self._done == self._total and self._unit == "rewrites":
            yield "committing"
        minutes, seconds = divmod(int(self._clock() - self._began), 60)
        hours, minutes = divmod(minutes, 60)
        yield f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"

    @contextmanager
    def shown(self, terminal: Terminal) -> Iterator[None]:
        """Keep it on the terminal: as its last line, or in a line every ten seconds."""
        over = Event()

        def keep() -> None:
            while not over.wait(_SECONDS_ON_TERMINAL if live else _SECONDS_IN_LOG):
                if live:
                    terminal.show(self.bar())
                else:
                    terminal.line(self.sentence())

        live = terminal.live
        thread = Thread(target=keep, name="dvm-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            terminal.show("")


def _bar(share: float) -> str:
    full = int(share * _BAR)
    return f"[{'#' * full}{'.' * (_BAR - full)}]"
