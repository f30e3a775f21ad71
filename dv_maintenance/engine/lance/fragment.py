"""What the reader of Lance's fragments needs besides the file: ``SourceFile.details``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fragment:
    """A fragment of a Lance dataset (``dataset``: its URI, absolute, percent-encoded) at a version."""

    dataset: str
    version: int
    id: int
