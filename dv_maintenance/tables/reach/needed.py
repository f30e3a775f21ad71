"""The files that something needs, and who needs them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Holder(NamedTuple):
    """What keeps files: the current version, a tag, a branch, a clone, a stream, a consumer, a pin, the retention.

    why : the reason in reports.
    until : when the retention of its version ends, epoch milliseconds; ``None`` if nothing is known about that.
    """

    why: str
    until: int | None = None


class Needed:
    """The keys of needed files, each with its holder. A key identifies a file in its format: by its path, or by its
    name where names are unique. Keys are only added, and the first holder of a key counts.
    """

    def __init__(self) -> None:
        self._by_key: dict[str, Holder] = {}
        self._anywhere: dict[str, Holder] = {}

    def add(self, keys: Iterable[str], why: str, *, until: int | None = None, anywhere: bool = False) -> None:
        """Add keys. ``anywhere``: they are base names, of files that may be in any folder."""
        known, holder = self._anywhere if anywhere else self._by_key, Holder(why, until)
        for key in keys:
            known.setdefault(key, holder)

    def __iter__(self) -> Iterator[str]:
        """The keys, without base names."""
        return iter(self._by_key)

    def holder(self, key: str) -> Holder | None:
        """Who needs the file; ``None`` if nobody does."""
        found = self._by_key.get(key)
        return self._anywhere.get(key.rpartition("/")[2]) if found is None and self._anywhere else found

    def why(self, key: str) -> str | None:
        """The reason of the holder, if there is one."""
        found = self._by_key.get(key) or (self.holder(key) if self._anywhere else None)
        return None if found is None else found.why

    def count(self) -> Counter[str]:
        """Reason -> number of keys."""
        return Counter(holder.why for known in (self._by_key, self._anywhere) for holder in known.values())


def pinned(version: int, noun: str = "version") -> str:
    return f"in {noun} {version}, which is pinned"
