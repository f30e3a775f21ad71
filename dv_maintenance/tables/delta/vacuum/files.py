"""The files in a Delta table's folder: which part of it a vacuum looks at, and what each file is by its name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from urllib.parse import unquote

from dv_maintenance.storage import staged_for
from dv_maintenance.tables.nested import NestedTables

_CHANGE_DATA = "_change_data"
_LOG = "_delta_log"
# Files that writers put into the log, under their staging names on local disk (see ``storage.staged_for``).
_STAGED_LOG = re.compile(rf"{_LOG}/([0-9]{{20}}\.[^/]+|_last_checkpoint|_last_vacuum_info)#[0-9]+")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def kind_of(path: str) -> str | None:
    """``data``, ``dv``, ``change`` or ``other`` for a file that a Delta writer may have made; ``None`` for a foreign
    file.

    Writers name data and change files ``*.parquet`` and DV files ``deletion_vector*.bin``. Some omit the extension of
    data files, but all put a UUID into such names. A file staged on local disk is of the kind it is staged for, or
    ``other`` if it is staged for the log.
    """
    if "#" in path:  # seldom
        if _STAGED_LOG.fullmatch(path):
            return "other"
        path = staged_for(path) or path
    folder, _, name = path.rpartition("/")
    if name.lower().endswith(".parquet"):
        kind = "data"
    elif name.startswith("deletion_vector") and name.endswith(".bin"):
        kind = "dv"
    elif "." not in name and _UUID.search(name):
        kind = "other"
    else:
        return None
    return "change" if folder == _CHANGE_DATA or folder.startswith(_CHANGE_DATA + "/") else kind


class Scope:
    """The part of a table's folder that a vacuum looks at.

    Out of scope are:

    * names that start with ``.`` or ``_`` (the log, symlink manifests, Bloom filter indexes, files of other engines),
      except ``_change_data``, folders of partition columns with such names, and files that killed writers left staged
      in the table's own log;
    * ``metadata``, if the table is also an Iceberg table;
    * every subfolder with a table of its own, of any known format.

    ``partition_columns``: logical and physical names, since folders may use either.
    """

    def __init__(self, partition_columns: Iterable[str], *, iceberg: bool) -> None:
        self._partition_columns = frozenset(partition_columns)
        self._iceberg = iceberg
        self._nested = NestedTables("delta")
        self._folders = {"": True}

    def skip(self, path: str, is_dir: bool) -> bool:
        """For ``Storage.walk``. Also records tables inside this one, so call :meth:`holds` only after the walk."""
        folder, _, name = path.rpartition("/")
        if is_dir:
            self._nested.see_folder(path)
        else:
            self._nested.see_files(folder, (path,))
        if path == _LOG or folder == _LOG:
            return not (is_dir and path == _LOG) and _STAGED_LOG.fullmatch(path) is None
        if not name.startswith((".", "_")):
            return self._iceberg and path == "metadata"
        return not (is_dir and (path == _CHANGE_DATA or self._is_partition(name)))

    def shown(self, folder: str, paths: Sequence[str]) -> list[str]:
        """Those of a folder's files that are not skipped."""
        if not folder or folder == _LOG:
            return [path for path in paths if not self.skip(path, False)]
        self._nested.see_files(folder, paths)
        name = len(folder) + 1
        return [path for path in paths if path[name] not in "._"]

    def holds(self, path: str) -> bool:
        """Whether a file is in scope. ``path`` may come from a log, so it can point anywhere."""
        if "://" in path or path.startswith("/") or "\0" in path or not _is_text(path):
            return False
        # Dots were resolved, so a path that leaves the table begins with `..`, a hidden name.
        return not self.skip(path, False) and self._holds_folder(path.rpartition("/")[0])

    @property
    def shared(self) -> bool:
        """Whether the table's own folder holds a table of another format, too: a file without history may be its."""
        return "" in self._nested.titles

    def _holds_folder(self, folder: str) -> bool:
        if folder not in self._folders:
            self._folders[folder] = (
                folder not in self._nested.titles
                and not self.skip(folder, True)
                and self._holds_folder(folder.rpartition("/")[0])
            )
        return self._folders[folder]

    def _is_partition(self, name: str) -> bool:
        column, equals, _ = name.partition("=")
        return bool(equals) and unquote(column) in self._partition_columns


def _is_text(path: str) -> bool:
    """Whether a path is valid UTF-8. Logs are, so no log names any other path."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
