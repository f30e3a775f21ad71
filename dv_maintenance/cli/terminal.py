"""Lines on stderr above a line that changes."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import suppress
from threading import Lock
from typing import IO, Final

_CLEAR: Final = "\r\x1b[2K"


class Terminal:
    """Lines on a stream that may be a terminal. A terminal shows the progress of a verb as its last line, and other
    lines above it. Elsewhere there are only whole lines, without control characters.

    stream : ``None``: stderr.
    """

    def __init__(self) -> None:
        self.stream: IO[str] | None = None
        self._lock = Lock()
        self._shown = ""

    @property
    def live(self) -> bool:
        """Whether a line can be replaced."""
        return self._stream().isatty() and os.environ.get("TERM") != "dumb"

    def line(self, text: str) -> None:
        """A whole line."""
        with self._lock, suppress(OSError):  # on a full disk nobody reads it, and the work goes on
            self._stream().write(f"{self._cleared()}{text}\n{self._shown}")
            self._stream().flush()

    def show(self, text: str) -> None:
        """Replace the line of progress; an empty text removes it."""
        text = text[: shutil.get_terminal_size().columns - 1]
        with self._lock:
            if text != self._shown:
                with suppress(OSError):
                    self._stream().write(self._cleared() + text)
                    self._stream().flush()
                self._shown = text

    def _stream(self) -> IO[str]:
        # Looked up late, as tests replace sys.stderr.
        return self.stream or sys.stderr

    def _cleared(self) -> str:
        return _CLEAR if self._shown else ""
