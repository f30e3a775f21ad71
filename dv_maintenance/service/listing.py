"""What a search of the folders of a file of tables found, kept as text between two searches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Final

import orjson

from dv_maintenance.errors import UsageError
from dv_maintenance.tables.find import FoundTable

if TYPE_CHECKING:
    from dv_maintenance.service.tables_file import TableSettings, TablesFolder, WatchConfig

_FORM: Final = 1


@dataclass(frozen=True, slots=True)
class Listing:
    """Tables by the folder's path, or the name of the schema, as the file has it. That path also means the same place
    in another checkout.

    Patterns and settings are applied later, so that a change of them needs no search. It holds no storage options.
    """

    folders: dict[str, list[FoundTable]]

    def finder(self, written: WatchConfig, rooted: WatchConfig) -> Callable[[TablesFolder], list[TableSettings]]:
        """For ``WatchConfig.located``: searches folders that are not kept, and keeps them.

        written : the file's settings.
        rooted : the same with absolute paths.
        """
        keys = {each.key: as_written.key for each, as_written in zip(rooted.folders, written.folders, strict=True)}

        def find(folder: TablesFolder) -> list[TableSettings]:
            key = keys[folder.key]
            if key not in self.folders:
                self.folders[key] = folder.search()
            return folder.among(self.folders[key])

        return find

    def to_json(self) -> str:
        folders = {key: [[*astuple(each)] for each in found] for key, found in self.folders.items()}
        return orjson.dumps({"form": _FORM, "folders": folders}).decode()

    @classmethod
    def from_json(cls, text: str) -> Listing:
        """Raises UsageError for other text."""
        try:
            body = orjson.loads(text)
            if body["form"] != _FORM:
                raise ValueError("form")
            rows = body["folders"].items()
            return cls({key: [FoundTable(*map(str, each)) for each in found] for key, found in rows})
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise UsageError(
                f"the kept listing of folders is damaged: {type(error).__name__}",
                next_step="refresh it: dg utils refresh-defs-state",
            ) from error
