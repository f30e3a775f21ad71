"""Files of deletion vectors in memory."""

from __future__ import annotations


class DvFile:
    """A stored file that remembers what was fetched from it. The only one there is: its name does not matter."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.fetched: list[tuple[int, int]] = []

    def __call__(self, uri: str, start: int, length: int) -> bytes:
        assert uri.startswith("s3://bucket/table/")
        self.fetched.append((start, length))
        return self.data[start : start + length]
