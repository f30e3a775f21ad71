"""Tables that lie in the folder of another one. Their files are not that table's, whatever their names look like."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from dv_maintenance.errors import StorageError, UsageError
from dv_maintenance.storage import Storage
from dv_maintenance.storage.paths import absolute_path
from dv_maintenance.tables.registry import detect, formats

# A format that this package does not maintain, by its folder.
_OTHERS: Final = ((".hoodie", "", "Hudi", None),)
_HIDDEN: Final = re.compile(r"(?:^|/)[._](?=[^/]*/)")


class NestedTables:
    """The tables in a folder, by what marks them. A walk shows folders and files in any order, so ask after it.

    titles : of the formats, by folder; "" for a table of another format than ``own`` in the folder itself.
    """

    def __init__(self, own: str) -> None:
        self.titles: dict[str, str] = {}
        self._own = own
        known = (*((each.marker, each.name, each.title, each.marker_file) for each in formats()), *_OTHERS)
        self._markers = known
        self._by_folder = frozenset(marker for marker, _, _, file in known if file is None)
        self._by_file = tuple(marker for marker, _, _, file in known if file is not None)

    def see_folder(self, path: str) -> None:
        above, _, marker = path.rpartition("/")
        if marker in self._by_folder:
            self._add(above, marker, ("",))

    def see_files(self, folder: str, paths: Iterable[str]) -> None:
        """Files of one folder. The folders on the way to it are not seen."""
        if folder.endswith(self._by_file):
            above, _, marker = folder.rpartition("/")
            self._add(above, marker, (path.rpartition("/")[2] for path in paths))

    def see_file_below(self, path: str) -> None:
        """A file, and the folders on the way to it."""
        for at in _HIDDEN.finditer(path):
            self.see_folder(path[: path.index("/", at.end())])
        self.see_files(path.rpartition("/")[0], (path,))

    def see_folder_itself(self, storage: Storage) -> None:
        """For walks that show only a part of it."""
        for marker in {each[0] for each in self._markers}:
            if names := storage.first_names(marker)[0]:
                self._add("", marker, names)

    def _add(self, folder: str, marker: str, names: Iterable[str]) -> None:
        found = [each for each in self._markers if each[0] == marker and (folder or each[1] != self._own)]
        for name in names if found and folder not in self.titles else ():
            for _, _, title, file in found:
                if file is None or re.fullmatch(file, name):
                    self.titles[folder] = title
                    return


@dataclass(frozen=True, slots=True)
class Around:
    """The table that a folder is a part of. ``title``: of its format."""

    place: str
    title: str


def table_around(storage: Storage) -> Around | None:
    """``None`` if there is none. Folders that may not be listed are passed over."""
    place = storage.uri
    while (place := place.rpartition("/")[0]).count("/") > 2:
        with suppress(StorageError):
            if (found := detect(Storage(place, storage.options))) is not None:
                return Around(place, found.title)
    return None


def check_outside_tables(file: str) -> None:
    """Raise UsageError for a local file to write inside a table: it could replace one of the table's files, or a vacuum
    would delete it.
    """
    if os.path.exists(file) and not os.path.isfile(file):
        return  # a terminal, a pipe
    absolute_path(file)  # raises
    _check_outside(Storage(os.path.realpath(file)), file)


def check_stored_outside_tables(storage: Storage, path: str) -> None:
    """As :func:`check_outside_tables`, for a file in any storage."""
    uri = storage.uri_of(path)
    if storage.is_local:
        check_outside_tables(storage.local(path))
    else:
        _check_outside(Storage(uri, storage.options), uri)


def _check_outside(storage: Storage, named: str) -> None:
    if (around := table_around(storage)) is not None:
        raise UsageError(
            f"{named} is inside the {around.title} table at {around.place}", next_step="name a file outside of tables"
        )
