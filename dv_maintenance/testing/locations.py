"""The location of a table under test, a folder or an object store in memory, which can be saved and reset."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from dv_maintenance.access import Access


class TableLocation(Protocol):
    """A place that holds only the table."""

    def save(self) -> None:
        """Save all files."""

    def reset(self) -> None:
        """Restore the saved files, with their times if the storage allows it."""

    def files(self) -> dict[str, bytes]:
        """Path -> content of every file."""


class Folder:
    """A folder on local disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._saved = path.with_name(f"{path.name} saved")

    def save(self) -> None:
        shutil.copytree(self.path, self._saved, symlinks=True)

    def reset(self) -> None:
        shutil.rmtree(self.path)
        shutil.copytree(self._saved, self.path, symlinks=True)

    def files(self) -> dict[str, bytes]:
        found = (path for path in self.path.rglob("*") if path.is_file())
        return {path.relative_to(self.path).as_posix(): path.read_bytes() for path in found}


class Bucket(Access):
    """An object store in memory, with conditional puts and multipart uploads, that replaces every bucket. The table is
    at the root of a bucket (``s3://lake``), and uses this store while it is ``Storage.default_access``.
    """

    def __init__(self) -> None:
        from obstore.store import MemoryStore

        self.store = MemoryStore()
        self._saved: dict[str, bytes] = {}

    def open_store(self, root: str, options: Mapping[str, str]) -> Any:
        return super().open_store(root, options) if root == "file://" else self.store

    def save(self) -> None:
        self._saved = self.files()

    def reset(self) -> None:
        """Restore the saved files, with the current time as their time."""
        for key in self.files():
            self.store.delete(key)
        for key, data in self._saved.items():
            self.store.put(key, data)

    def files(self) -> dict[str, bytes]:
        return {
            meta["path"]: bytes(self.store.get(meta["path"]).bytes()) for batch in self.store.list() for meta in batch
        }
