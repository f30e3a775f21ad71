"""References to deletion vectors: what a codec is given to read one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

Fetch = Callable[[str, int, int], bytes]
"""``fetch(uri, start, length)``: at most ``length`` bytes, fewer where the file ends. Raises FileNotFoundError."""


class DvRef(Protocol):
    """Where the bytes of a DV are and what they must amount to; see ``dv_maintenance.tables.work.DvRef``."""

    @property
    def codec(self) -> str: ...
    @property
    def cardinality(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def uri(self) -> str | None: ...
    @property
    def offset(self) -> int | None: ...
    @property
    def inline(self) -> str | None: ...
