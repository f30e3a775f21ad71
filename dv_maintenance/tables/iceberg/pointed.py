"""A table whose entry in a catalog names its newest metadata file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from dv_maintenance.errors import DamagedTableError, UnsupportedFeatureError
from dv_maintenance.storage import Storage, plain_uri

_ATTEMPTS: Final = 3
_RESTORE: Final = "restore the file from a backup, or let the catalog name an older one"


@dataclass(frozen=True, slots=True)
class PointedTable:
    """The handle of such a table. See ``registry.CatalogTable``.

    name : as users write it, with the catalog.
    find : asks the catalog for the location of the newest metadata file.
    move : lets the catalog name a new metadata file in place of an old one, as :meth:`move_pointer`; ``None`` if the
        catalog can't do that safely.
    why_not : for a catalog without ``move``, why the table is only read, and what to do.
    """

    name: str
    find: Callable[[], str] = field(repr=False, compare=False)
    move: Callable[[str, str], None] | None = field(default=None, repr=False, compare=False)
    why_not: str = ""

    def newest(self) -> str:
        """The location of the newest metadata file. Raises what the catalog's module raises."""
        return self.find()

    def refusal(self) -> str:
        """Why nothing can be committed; "" if it can."""
        return "" if self.move is not None else self.why_not

    def move_pointer(self, old: str, new: str) -> None:
        """Let the catalog name the metadata file ``new`` instead of ``old``.

        Raises
        ------
        Overtaken : it does not name ``old``; nothing was changed.
        StorageDeniedError, RefusedError : the catalog refused; nothing was changed.
        StorageUnavailableError : it is unknown whether the pointer was moved.
        """
        assert self.move is not None, "refused before"
        self.move(old, new)


def root_of(name: str, metadata: str, find: Callable[[], str], options: Mapping[str, str] | None) -> Storage:
    """The storage of a table, whose newest metadata file says where it is.

    name : of the table, for errors.
    metadata : the location of that file.
    find : as ``PointedTable.find``, if the file has been replaced meanwhile.

    Raises
    ------
    DamagedTableError : the file can't be read.
    UnsupportedFeatureError : it is that of a view.
    StorageError : of the storage.
    """
    from dv_maintenance.tables.iceberg.log.metadata import document

    for _ in range(_ATTEMPTS):
        uri = plain_uri(metadata)
        storage = Storage(uri.rpartition("/")[0], options)
        try:
            body = document(storage.get(storage.path_of_uri(uri)))
        except FileNotFoundError:
            # A commit may have deleted it in the meantime.
            metadata = find()
            continue
        except DamagedTableError as error:
            raise DamagedTableError(f"{name}: {metadata}: {error.message}", next_step=_RESTORE) from error
        if "view-uuid" in body:
            raise UnsupportedFeatureError(
                f"{name} is a view, which is left alone", features=("views",), next_step="name a table"
            )
        if not isinstance(location := body.get("location"), str):
            raise DamagedTableError(f"{name}: {metadata} does not say where the table is", next_step=_RESTORE)
        return Storage(plain_uri(location), options)
    raise DamagedTableError(f"{name}: its catalog names {metadata}, which does not exist", next_step=_RESTORE)
