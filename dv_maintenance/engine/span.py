"""Ranges of a file's bytes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """A range of a file's bytes, ``[start, stop)``. A row group belongs to the span that contains its middle, so spans
    that cover a file distribute its row groups before the footer is read.
    """

    start: int = 0
    stop: int | None = None

    def holds(self, position: int) -> bool:
        return self.start <= position and (self.stop is None or position < self.stop)


WHOLE = Span()
