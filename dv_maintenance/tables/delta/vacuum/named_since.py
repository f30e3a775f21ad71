"""The files that concurrent commits name while a vacuum deletes. It reads these commits between its batches."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dv_maintenance.dv.descriptor import DvDescriptor
from dv_maintenance.errors import ConflictError
from dv_maintenance.storage import RawName
from dv_maintenance.tables.delta.log.segment import latest_version, read_commit
from dv_maintenance.tables.delta.vacuum.expired import path_of

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage

__all__ = ["NamedSince"]


@dataclass(slots=True)
class NamedSince:
    """Files that commits after the vacuum's version name, live or removed: a file removed just now belongs to a version
    inside the retention.

    version : the newest version that was read.
    named : path -> the newest version that named it.
    names : base names of the files that the log places outside the table.
    changed : whether a commit changed protocol or metadata, which invalidates the vacuum's decisions.
    """

    storage: Storage
    version: int
    named: dict[str, int] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    changed: bool = False

    def refresh(self) -> None:
        """Read the commits since the last call.

        Raises
        ------
        ConflictError : the log got shorter or lost a commit, so the table was replaced.
        DamagedTableError, StorageError : a commit cannot be read.
        """
        newest = latest_version(self.storage, known=self.version)
        if newest < self.version:
            raise self._conflict(f"its newest version is {newest}, before {self.version}")
        for version in range(self.version + 1, newest + 1):
            try:
                actions = read_commit(self.storage, version)
            except FileNotFoundError:
                raise self._conflict(f"commit {version} is gone") from None
            for action in actions:
                self.changed = self.changed or "protocol" in action or "metaData" in action
                for body in (action.get(kind) for kind in ("add", "remove", "cdc")):
                    for path in () if body is None else _paths(self.storage, body):
                        self._name(path, version)
            self.version = version

    def needs(self, path: str) -> bool:
        return path in self.named or path.rpartition("/")[2] in self.names

    def _name(self, path: str, version: int) -> None:
        self.named[path] = version
        if "://" in path:
            self.names.add(posixpath.basename(path))

    def _conflict(self, what: str) -> ConflictError:
        return ConflictError(f"the log changed while files were deleted: {what}", table=self.storage.uri)


def _paths(storage: Storage, body: Mapping[str, Any]) -> Iterator[str]:
    """The paths that an action may mean; ``expired.paths_of`` explains why the literal name counts too."""
    name = body.get("path")
    if isinstance(name, str):
        yield from (name, path_of(storage, RawName(name)))
    if (dv := body.get("deletionVector")) is not None:
        descriptor = DvDescriptor.from_json(dv)
        if descriptor.storage_type == "u":
            yield posixpath.normpath(descriptor.relative_path())
        elif descriptor.storage_type == "p":
            yield path_of(storage, RawName(descriptor.path_or_inline))
