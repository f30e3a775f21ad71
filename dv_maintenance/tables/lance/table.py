"""A Lance table, as far as it can be looked at: each method is a module of this folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast

from dv_maintenance.tables.lance.snapshot import LanceSnapshot, load_snapshot

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.lance.preflight import Fault
    from dv_maintenance.tables.lance.refs import Branch, Tag
    from dv_maintenance.tables.model import Changes, HistoryEntry, OldestDv, Snapshot

__all__ = ["LanceTable"]


@dataclass(frozen=True, slots=True)
class LanceTable:
    """The reading half of ``dv_maintenance.tables.model.Table``, which says what each method promises. The folder of a
    branch (``TABLE/tree/NAME``) is a table like any other.
    """

    storage: Storage
    format: ClassVar[str] = "lance"

    @property
    def uri(self) -> str:
        return self.storage.uri

    def version(self, known: int | None = None) -> int:
        from dv_maintenance.tables.lance.versions import latest_version

        del known  # see there why it is of no use
        return latest_version(self.storage)

    def snapshot(self, version: int | None = None) -> LanceSnapshot:
        return load_snapshot(self.storage, version)

    def changes_since(self, version: int) -> Changes:
        from dv_maintenance.tables.lance.history import changes_since

        return changes_since(self.storage, version)

    def history(self, limit: int | None = None) -> list[HistoryEntry]:
        from dv_maintenance.tables.lance.history import history

        return history(self.storage, limit)

    def oldest_dv(self, snapshot: Snapshot, limit: int = 1000) -> OldestDv | None:
        from dv_maintenance.tables.lance.history import oldest_dv

        return oldest_dv(self.storage, cast("LanceSnapshot", snapshot), limit)

    def preflight(self, version: int | None = None, fragments: Sequence[int] | None = None) -> tuple[Fault, ...]:
        """Every fault of the deletion files of a version, the newest by default."""
        from dv_maintenance.tables.lance.preflight import preflight

        return preflight(self.storage, version, fragments)

    def tags(self) -> dict[str, Tag]:
        """By name; those of every branch, even if this is one."""
        from dv_maintenance.tables.lance.refs import tags

        return tags(self._root())

    def branches(self) -> dict[str, Branch]:
        """By name, without the main one."""
        from dv_maintenance.tables.lance.refs import branches

        return branches(self._root())

    def branch(self, name: str) -> LanceTable:
        """One of the ``branches``. Raises UsageError if there is no such branch."""
        from dv_maintenance.errors import UsageError
        from dv_maintenance.storage import Storage

        known = self.branches()
        if name not in known:
            raise UsageError(
                f"there is no branch {name!r}",
                table=self.uri,
                next_step=f"use one of {', '.join(known)}" if known else "the table has no branches",
            )
        place = self._root()
        return LanceTable(Storage(place.uri_of(known[name].path), place.options))

    def _root(self) -> Storage:
        from dv_maintenance.tables.lance.refs import root
        from dv_maintenance.tables.lance.versions import load_manifest

        # Only a branch can lie in such a folder, and only its manifest knows how much of the path is its name.
        if "/tree/" not in self.uri:
            return self.storage
        return root(self.storage, load_manifest(self.storage)[1].branch)
