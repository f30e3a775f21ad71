"""Restore files of a Paimon table from its quarantine. A restored snapshot file restores its snapshot.

Snapshots must have no gaps. They are restored from the oldest existing one downwards, each with every file that it
needs. At the first one that can't be restored, this stops, and older ones stay in quarantine. The same holds for
changelogs. The hints are updated last.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dv_maintenance.errors import ConflictError, DvMaintenanceError
from dv_maintenance.tables.paimon.layout import CHANGELOG, SNAPSHOT, Layout, numbered
from dv_maintenance.tables.paimon.log.schema import Schema, newest_schema
from dv_maintenance.tables.paimon.log.snapshots import all_versions
from dv_maintenance.tables.paimon.vacuum.files import list_files
from dv_maintenance.tables.paimon.vacuum.holders import read_ref
from dv_maintenance.tables.paimon.vacuum.references import MissingError, ReferenceReader
from dv_maintenance.units import count

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.quarantine import Restored

GAP: Final = "older than snapshots that are gone: there would be a gap"
NEWER: Final = "of a snapshot that the table does not have yet: the table was rolled back or recreated"
LACKING: Final = "of a snapshot whose files are gone"
_NUMBERED: Final = re.compile(r"(?:branch/branch-([^/]+)/)?(snapshot|changelog)/(?:snapshot|changelog)-([0-9]{1,18})")


@dataclass(frozen=True, slots=True)
class _File:
    path: str
    branch: str | None
    folder: str
    number: int


@dataclass(frozen=True, slots=True)
class PaimonUndeleteRules:
    """See ``quarantine.UndeleteRules``. ``storage``: storage of the table's root."""

    storage: Storage

    def kept(self, restored: Restored) -> Mapping[str, str]:
        files = [file for path in restored.places if (file := _file(path)) is not None]
        kept: dict[str, str] = {}
        for branch in {file.branch for file in files}:
            layout = Layout(self.storage, branch)
            ids = all_versions(layout) if self._is_there(layout) else []
            needs = _Needs(Layout(restored, branch), newest_schema(layout), restored.places) if ids else None
            for folder in (SNAPSHOT, CHANGELOG):
                if folder == CHANGELOG:
                    ids += _ids(layout, CHANGELOG)
                numbered_files = [file for file in files if (file.branch, file.folder) == (branch, folder)]
                for file in sorted(numbered_files, key=lambda file: -file.number):
                    reason = _reason(file, ids, needs)
                    if reason is not None:
                        kept[file.path] = reason
                    elif file.number not in ids:
                        ids.append(file.number)
        return kept

    def _is_there(self, layout: Layout) -> bool:
        return any(_ids(layout, SNAPSHOT))

    def order(self, path: str) -> tuple[int, int]:
        file = _file(path)
        # Snapshots before changelogs: a changelog without the snapshots after it would leave a gap.
        return (0, 0) if file is None else (1 if file.folder == SNAPSHOT else 2, -file.number)

    def settle(self, paths: Sequence[str]) -> None:
        files = [file for path in paths if (file := _file(path)) is not None]
        for branch, folder in {(file.branch, file.folder) for file in files}:
            layout = Layout(self.storage, branch)
            if ids := _ids(layout, folder):
                self.storage.put(f"{layout.own}{folder}/EARLIEST", str(min(ids)).encode())
        for file in files:
            layout = Layout(self.storage, file.branch)
            if file.folder == SNAPSHOT and not _Needs(layout, newest_schema(layout), ()).met(file):
                raise ConflictError(
                    f"snapshot {file.number} was restored, but a concurrent vacuum or expiry deleted some of its files",
                    table=layout.uri,
                    version=file.number,
                    done=f"restored {count(len(paths), 'file')}",
                    next_step="let the next vacuum delete that snapshot again; do not run vacuum during undelete",
                )


@dataclass(slots=True)
class _Needs:
    """Checks whether all files exist that a snapshot needs.

    more : paths that count as existing.
    there : paths of the files that the listing found.
    """

    layout: Layout
    more: Collection[str]
    reader: ReferenceReader
    there: frozenset[str]

    def __init__(self, layout: Layout, schema: Schema, more: Collection[str]) -> None:
        self.layout, self.more, self.reader = layout, more, ReferenceReader(layout, schema)
        self.there = frozenset(info.path for info, _ in list_files(Layout(layout.storage), schema))

    def met(self, file: _File) -> bool:
        try:
            ref = read_ref(self.layout, file.path, file.number)
            (reached,) = self.reader.resolve([ref])
        except (DvMaintenanceError, FileNotFoundError, MissingError):
            return False
        for each in self.reader.files(reached.data):
            folder = each.folder if each.external is None else None
            if folder is not None and not all(self._has(f"{folder}/{name}") for name in (each.name, *each.extra)):
                return False
        # Lists of changes may be deleted before the rest. The base and delta lists were just read, so they exist.
        return all(self._has(each.path) for each in reached.named if each.kind == "index" and each.path)

    def _has(self, path: str) -> bool:
        return path in self.there or path in self.more or ("://" in path and self.layout.storage.exists(path))


def _ids(layout: Layout, folder: str) -> list[int]:
    """The numbers of the snapshots or changelogs that exist."""
    return [found for name in layout.names(folder) if (found := numbered(name, f"{folder}-")) is not None]


def _file(path: str) -> _File | None:
    match = _NUMBERED.fullmatch(path)
    return None if match is None else _File(path, match[1], match[2], int(match[3]))


def _reason(file: _File, ids: Collection[int], needs: _Needs | None) -> str | None:
    """Why a file can't be restored; ``None`` if it can.

    ids : existing snapshots, and those to be restored; for a changelog, also existing changelogs and those to be
        restored.
    """
    if needs is None or file.number > max(ids):
        return NEWER
    if file.number + 1 not in ids:
        return GAP
    return None if file.folder == CHANGELOG or needs.met(file) else LACKING
