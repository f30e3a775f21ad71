"""Where the files of a table are.

Format: directory layout of Paimon's file store. A branch has schemas, snapshots and tags of its own, and shares data,
manifests and index files with the table that it branched off.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from dv_maintenance.errors import StorageError
from dv_maintenance.storage import Storage

__all__ = ["CHANGELOG", "INDEX", "MANIFEST", "SCHEMA", "SNAPSHOT", "Layout", "numbered", "table_layout"]

SCHEMA: Final = "schema"
SNAPSHOT: Final = "snapshot"
CHANGELOG: Final = "changelog"
MANIFEST: Final = "manifest"
INDEX: Final = "index"
_BRANCH: Final = re.compile(r"(.+)/branch/branch-([^/]+)")
_NUMBER: Final = 18  # digits of the largest id that is taken for one


@dataclass(frozen=True, slots=True)
class Layout:
    """``storage``: of the table's root. ``branch``: ``None`` is the main one. Paths are relative to the root."""

    storage: Storage
    branch: str | None = None

    @property
    def own(self) -> str:
        """What stands in front of the branch's own folders."""
        return "" if self.branch is None else f"branch/branch-{self.branch}/"

    @property
    def uri(self) -> str:
        """Of the table, or of the branch's folder."""
        return self.storage.uri if self.branch is None else self.storage.uri_of(self.own.rstrip("/"))

    def snapshot(self, version: int) -> str:
        return f"{self.own}{SNAPSHOT}/snapshot-{version}"

    def changelog(self, version: int) -> str:
        """What a snapshot leaves behind where its changes outlive it."""
        return f"{self.own}{CHANGELOG}/changelog-{version}"

    def schema(self, schema_id: int) -> str:
        return f"{self.own}{SCHEMA}/schema-{schema_id}"

    def manifest(self, name: str) -> str:
        return f"{MANIFEST}/{name}"

    def schemas(self) -> list[int]:
        """Ids of the schemas, in no order; none where there is no table.

        Raises
        ------
        StorageError : the listing lacks a schema that is there, as a store's may for a while.
        """
        found = [number for name in self.names(SCHEMA) if (number := numbered(name, "schema-")) is not None]
        # An existing table is not to be taken for none, which is no error that goes away.
        if not found and self.storage.exists(self.schema(0)):
            raise StorageError(
                f"the store's listing of {self.own}{SCHEMA} lacks a schema that is there",
                table=self.uri,
                next_step="run again in a moment",
            )
        return found

    def names(self, folder: str) -> tuple[str, ...]:
        """Names of the files right in one of the branch's own folders, in no order."""
        path = f"{self.own}{folder}"
        names, complete = self.storage.first_names(path)
        if not complete:
            names = tuple(info.path[len(path) + 1 :] for info in self.storage.list(path))
        return names


def table_layout(storage: Storage) -> Layout:
    """The layout of the table, or of the branch, that ``storage`` is the folder of."""
    match = _BRANCH.fullmatch(storage.uri)
    if match is None:
        return Layout(storage)
    return Layout(Storage(match[1], storage.options), unquote(match[2]))


def numbered(name: str, prefix: str) -> int | None:
    """The number after a prefix of a file's name.

    >>> numbered("snapshot-12", "snapshot-"), numbered("snapshot-12.tmp", "snapshot-"), numbered("LATEST", "snapshot-")
    (12, None, None)
    """
    digits = name.removeprefix(prefix)
    plain = name.startswith(prefix) and digits.isascii() and digits.isdecimal() and len(digits) <= _NUMBER
    return int(digits) if plain else None
