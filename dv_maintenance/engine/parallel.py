"""Columns at a time within one task."""

from __future__ import annotations


def columns_at_once(threads: int) -> int:
    """How many columns of a row group a task with so many threads decodes at a time, and encodes.

    Two threads have enough to do while one decodes and the other encodes: more would only take more memory.
    """
    return threads if threads > 2 else 1
