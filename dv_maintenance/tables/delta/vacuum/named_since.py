"""The files that concurrent commits name while a vacuum deletes. It reads these commits between its batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dv_maintenance.errors import ConflictError
from dv_maintenance.tables.delta.log.segment import latest_version, read_commit
from dv_maintenance.tables.delta.vacuum.names import named_by

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage


@dataclass(slots=True)
class NamedSince:
    """Files that commits after the vacuum's version name, live or removed: a file removed just now belongs to a version
    inside the retention.

    version : the newest version that was read.
    named : path -> the newest version that named it.
    names : base names of the files that the log places outside the table.
    """

    storage: Storage
    version: int
    named: dict[str, int] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)

    def refresh(self) -> bool:
        """Read the commits since the last call. Returns whether one of them changed protocol or metadata, which
        invalidates the vacuum's decisions.

        Raises
        ------
        ConflictError : the log got shorter or lost a commit, so the table was replaced.
        DamagedTableError, StorageError : a commit cannot be read.
        """
        newest, changed = latest_version(self.storage, known=self.version), False
        if newest < self.version:
            raise self._conflict(f"its newest version is {newest}, before {self.version}")
        for version in range(self.version + 1, newest + 1):
            try:
                actions = read_commit(self.storage, version)
            except FileNotFoundError:
                raise self._conflict(f"commit {version} is gone") from None
            changed = changed or any("protocol" in action or "metaData" in action for action in actions)
            found = named_by(self.storage, actions)
            self.named |= dict.fromkeys(found.paths, version)
            self.names |= found.elsewhere
            self.version = version
        return changed

    def needs(self, path: str) -> bool:
        return path in self.named or path.rpartition("/")[2] in self.names

    def _conflict(self, what: str) -> ConflictError:
        return ConflictError(f"the log changed while files were deleted: {what}", table=self.storage.uri)
