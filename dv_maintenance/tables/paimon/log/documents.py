"""Parse JSON files of a table, and validate their content."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson

from dv_maintenance.errors import DamagedTableError

T = TypeVar("T")
_MAX_LONG = 2**63


@dataclass(frozen=True, slots=True)
class Document:
    """The object in a JSON file. A missing value counts as null.

    Every method raises DamagedTableError, which names ``table`` and ``path``.
    """

    table: str
    path: str
    body: Mapping[str, Any]

    @classmethod
    def parse(cls, table: str, path: str, data: bytes) -> Document:
        empty = cls(table, path, {})
        try:
            body = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise empty.damaged(f"the file is not JSON ({error.msg})") from None
        if not isinstance(body, dict):
            raise empty.damaged("the file is not a JSON object")
        return cls(table, path, body)

    def damaged(self, reason: str, version: int | None = None) -> DamagedTableError:
        return DamagedTableError(f"{self.path}: {reason}", table=self.table, version=version)

    def integer(self, name: str) -> int:
        found = self.optional_integer(name)
        if found is None:
            raise self.damaged(f"{name} is missing")
        return found

    def optional_integer(self, name: str) -> int | None:
        found = self.body.get(name)
        # Not isinstance: in Python, a bool is an int.
        if found is not None and (type(found) is not int or not -_MAX_LONG <= found < _MAX_LONG):
            raise self.damaged(f"{name} is not a 64-bit integer")
        return found

    def text(self, name: str) -> str:
        found = self.optional_text(name)
        if found is None:
            raise self.damaged(f"{name} is missing")
        return found

    def optional_text(self, name: str) -> str | None:
        return self._of(name, str)

    def file_name(self, name: str) -> str:
        """The name of a file, without a folder: the format fixes the folder."""
        found = self.text(name)
        if not found or "/" in found or found in {".", ".."}:
            raise self.damaged(f"{name} is not a file name: {found[:100]!r}")
        return found

    def optional_file_name(self, name: str) -> str | None:
        return None if self.body.get(name) is None else self.file_name(name)

    def texts(self, name: str) -> tuple[str, ...]:
        found = self._of(name, list) or []
        if not all(isinstance(each, str) for each in found):
            raise self.damaged(f"{name} is not a list of names")
        return tuple(found)

    def options(self, name: str) -> dict[str, str]:
        found = self._of(name, dict) or {}
        if not all(isinstance(each, str) for each in found.values()):
            raise self.damaged(f"{name} holds something other than text")
        return dict(found)

    def objects(self, name: str) -> list[Any]:
        return list(self._of(name, list) or [])

    def _of(self, name: str, kind: type[T]) -> T | None:
        found = self.body.get(name)
        if found is not None and not isinstance(found, kind):
            raise self.damaged(f"{name} is not a {kind.__name__}")
        return found
