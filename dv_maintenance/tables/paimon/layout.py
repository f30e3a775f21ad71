"""The folders and file names of a table.

Format: directory layout of Paimon's file store. A branch has its own schemas, snapshots and tags. It shares data files,
manifests and index files with the table that it branched off.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from dv_maintenance.errors import StorageUnavailableError
from dv_maintenance.storage import Storage

SCHEMA: Final = "schema"
SNAPSHOT: Final = "snapshot"
CHANGELOG: Final = "changelog"
MANIFEST: Final = "manifest"
INDEX: Final = "index"
_BRANCH: Final = re.compile(r"(.+)/branch/branch-([^/]+)")
_NUMBER: Final = 18  # maximum number of digits of an id


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of one branch, relative to the table's root.

    storage : storage of the table's root.
    branch : its name; ``None`` for the main branch.
    """

    storage: Storage
    branch: str | None = None

    @property
    def own(self) -> str:
        """Path prefix of the branch's own folders."""
        return "" if self.branch is None else f"branch/branch-{self.branch}/"

    @property
    def uri(self) -> str:
        """URI of the table, or of the branch's folder."""
        return self.storage.uri if self.branch is None else self.storage.uri_of(self.own.rstrip("/"))

    def snapshot(self, version: int) -> str:
        return f"{self.own}{SNAPSHOT}/snapshot-{version}"

    def changelog(self, version: int) -> str:
        """The changelog of a snapshot, which may outlive the snapshot."""
        return f"{self.own}{CHANGELOG}/changelog-{version}"

    def schema(self, schema_id: int) -> str:
        return f"{self.own}{SCHEMA}/schema-{schema_id}"

    def manifest(self, name: str) -> str:
        return f"{MANIFEST}/{name}"

    def schemas(self) -> list[int]:
        """Ids of the schemas, unordered; empty if there is no table.

        Raises
        ------
        StorageError : the listing lacks an existing schema, as may happen in an eventually consistent store.
        """
        found = [number for name in self.names(SCHEMA) if (number := numbered(name, "schema-")) is not None]
        # Do not report an existing table as missing: callers do not retry that error.
        if not found and self.storage.exists(self.schema(0)):
            raise StorageUnavailableError(
                f"the store's listing of {self.own}{SCHEMA} lacks an existing schema",
                table=self.uri,
                next_step="run again in a moment",
            )
        return found

    def names(self, folder: str) -> Sequence[str]:
        """Names of the files directly in one of the branch's own folders, unordered."""
        return self.storage.names(f"{self.own}{folder}")


def table_layout(storage: Storage) -> Layout:
    """The layout of the table or branch in the folder ``storage``."""
    match = _BRANCH.fullmatch(storage.uri)
    if match is None:
        return Layout(storage)
    return Layout(storage.at(match[1]), unquote(match[2]))


def numbered(name: str, prefix: str) -> int | None:
    """The number after the prefix of a file name; ``None`` if the name does not have this form.

    >>> numbered("snapshot-12", "snapshot-"), numbered("snapshot-12.tmp", "snapshot-"), numbered("LATEST", "snapshot-")
    (12, None, None)
    """
    digits = name.removeprefix(prefix)
    plain = name.startswith(prefix) and digits.isascii() and digits.isdecimal() and len(digits) <= _NUMBER
    return int(digits) if plain else None
