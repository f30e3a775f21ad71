"""Where a table under trial lies, a folder or an object store in memory: saved once, and brought back at will."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from dv_maintenance.access import Access

__all__ = ["Bucket", "Folder", "Ground"]


class Ground(Protocol):
    """Nothing but the table is there."""

    def save(self) -> None:
        """Remember what is there."""

    def reset(self) -> None:
        """Bring back what was saved, times included as far as the storage lets one."""

    def files(self) -> dict[str, bytes]:
        """What is in which file."""


class Folder:
    """On local disk."""

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
    """An object store in memory, with conditional puts and multipart uploads, in the place of every bucket. Its table
    is at the root of one (``s3://lake``), and reaches it where this is ``Storage.default_access``.
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
        """All of it is as new as if it were written now."""
        for key in self.files():
            self.store.delete(key)
        for key, data in self._saved.items():
            self.store.put(key, data)

    def files(self) -> dict[str, bytes]:
        return {
            meta["path"]: bytes(self.store.get(meta["path"]).bytes()) for batch in self.store.list() for meta in batch
        }
