"""The watchers of one triggerer, by the place that they watch: two definitions of one table take turns, and say so."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

# By place: what each watcher's table is called, and what it has begun there, "" for nothing.
_AT: Final[dict[str, dict[tuple[int, str], str]]] = {}


def note(places: Iterable[str], watcher: int, definition: str, begun: str) -> None:
    """What a watcher knows of a table now.

    places : URIs of the table.
    definition : of the table; a watcher for rewrites and one for vacuums may share it.
    begun : run or event that is under way, "" for nothing.
    """
    for place in places:
        _AT.setdefault(place, {})[watcher, definition] = begun


def others(places: Iterable[str], definition: str) -> dict[str, str]:
    """Other definitions of the table there, each with what was begun for it."""
    found: dict[str, str] = {}
    for place in places:
        for (_, other), begun in list(_AT.get(place, {}).items()):
            if other != definition:
                found[other] = found.get(other) or begun
    return found


def forget(watcher: int) -> None:
    """The watcher has ended."""
    for place in list(_AT):
        left = {key: begun for key, begun in _AT[place].items() if key[0] != watcher}
        if left:
            _AT[place] = left
        else:
            del _AT[place]
