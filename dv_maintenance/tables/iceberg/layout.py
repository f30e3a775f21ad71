"""Where an Iceberg table is, and how its metadata spells the files in it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.files.arrays import strings
from dv_maintenance.storage import Storage, plain_uri
from dv_maintenance.tables.iceberg.catalog import IcebergCatalogTable
from dv_maintenance.tables.iceberg.pointed import PointedTable
from dv_maintenance.tables.iceberg.session_catalog import SessionCatalogTable
from dv_maintenance.tables.registry import Location, NamedTable

if TYPE_CHECKING:
    from dv_maintenance.tables.iceberg.log.metadata import Metadata

METADATA: Final = "metadata"
# The last two are older names.
_DATA_PATHS: Final = ("write.data.path", "write.object-storage.path", "write.folder-storage.path")


@dataclass(frozen=True, slots=True)
class Layout:
    """A table's root, and what says which metadata file is its newest one.

    storage : the root: the folder that has the folder ``metadata``, or the table's location in its catalog.
    file : path of the only metadata file to read, if the table was named by one.
    catalog : the table in its catalog, if it was named there.
    branch : the branch whose newest snapshot is the newest version.
    """

    storage: Storage
    file: str | None = None
    catalog: IcebergCatalogTable | SessionCatalogTable | PointedTable | None = None
    branch: str = "main"

    @classmethod
    def of(cls, location: Location) -> Layout:
        """The layout of a table at a location. A catalog that leaves commits to the files is not asked any more, one of
        another kind through pyiceberg, by its name. Raises UsageError.
        """
        storage, catalog = location.storage, location.catalog
        if isinstance(catalog, IcebergCatalogTable | SessionCatalogTable | PointedTable):
            return cls(storage, catalog=catalog)
        if catalog is not None and not isinstance(catalog, NamedTable):
            return cls(storage, catalog=IcebergCatalogTable.called(catalog.name))
        folder, _, name = storage.uri.rpartition("/")
        if not name.endswith((".metadata.json", ".metadata.json.gz")):
            return cls(storage)
        root = folder.removesuffix(f"/{METADATA}")
        place = storage.at(root)
        return cls(place, place.path_of_uri(storage.uri))

    def at(self, storage: Storage) -> Layout:
        """The same table through another storage, such as one for a dry run."""
        return replace(self, storage=storage)

    def data_folder(self, metadata: Metadata) -> str:
        """Where new data files go unless they replace others, as the table spells it: see :meth:`_folder`."""
        return self._folder(metadata, "data", _DATA_PATHS)

    def metadata_folder(self, metadata: Metadata) -> str:
        """Where manifests go, and metadata files of catalogs, as the table spells it: see :meth:`_folder`."""
        return self._folder(metadata, METADATA, ("write.metadata.path",))

    def _folder(self, metadata: Metadata, name: str, properties: Iterable[str]) -> str:
        """The folder that a property names, if it is inside the root; otherwise the one of that name."""
        wanted = (metadata.properties.get(each, "").rstrip("/") for each in properties)
        inside = (each for each in wanted if each and "://" not in self.path(each))
        return next(inside, f"{metadata.location.rstrip('/')}/{name}")

    def is_copy(self, metadata: Metadata) -> bool:
        """Whether the table says that it is elsewhere: its folder was copied or moved, and all paths lead there."""
        return "://" in self.path(f"{metadata.location.rstrip('/')}/{METADATA}")

    @property
    def uri(self) -> str:
        return self.storage.uri

    def path(self, raw: str) -> str:
        """The storage path of a file as the metadata spells it: nothing in it is encoded."""
        return self.storage.path_of_uri(plain_uri(raw))

    def paths(self, raw: pa.ChunkedArray | pa.Array, location: str) -> pa.Array:
        """As :meth:`path`, for a column. ``location``: the root as the metadata spells it."""
        column = raw.combine_chunks() if isinstance(raw, pa.ChunkedArray) else raw
        prefix = location.rstrip("/") + "/"
        below = len(column) and plain_uri(location) == self.uri and pc.all(pc.starts_with(column, prefix)).as_py()
        if below and not pc.any(pc.match_substring_regex(column, r"//|/\.{1,2}(/|$)")).as_py():
            return pc.utf8_slice_codeunits(column, len(prefix))
        return strings([None if each is None else self.path(each) for each in column.to_pylist()])
