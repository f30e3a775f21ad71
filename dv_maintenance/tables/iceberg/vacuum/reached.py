"""Files that snapshots reach through manifest lists and manifests, by their paths.

Many deletion vectors share a Puffin file: it is reached while any live entry names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from dv_maintenance.files.arrays import integer
from dv_maintenance.tables.iceberg.log.manifests import DELETED, ManifestEntries, manifests_of, read_entries
from dv_maintenance.tables.iceberg.rows.partitions import Partitions

if TYPE_CHECKING:
    from dv_maintenance.tables.iceberg.layout import Layout
    from dv_maintenance.tables.iceberg.log.manifests import Manifest
    from dv_maintenance.tables.iceberg.log.metadata import Metadata

_STATISTICS = ("statistics", "partition-statistics")


@dataclass(slots=True)
class Reached:
    """Reads each manifest once. All paths are those of the storage."""

    layout: Layout
    _entries: ManifestEntries = field(default_factory=lambda: ManifestEntries({}))
    _partitions: Partitions | None = None
    _live: dict[Manifest, tuple[str, ...]] = field(default_factory=dict)
    _all: dict[Manifest, tuple[str, ...]] = field(default_factory=dict)

    def by(self, metadata: Metadata, snapshot: int, *, ever: bool = False) -> Iterator[str]:
        """The files that a snapshot reaches, its list and manifests among them. ``ever``: those, too, that its
        manifests record as removed.

        Raises
        ------
        DamagedTableError : a list or a manifest can't be read, so its files are unknown.
        """
        entry = metadata.snapshots[snapshot]
        if entry.manifest_list is not None:
            yield self.layout.path(entry.manifest_list)
        manifests = manifests_of(self.layout, entry)
        self._read(metadata, snapshot, manifests)
        for each in manifests:
            yield self.layout.path(each.path)
            yield from (self._all if ever else self._live)[each]
        yield from self._statistics(metadata, lambda number: number == snapshot)

    def _statistics(self, metadata: Metadata, of: Callable[[int], bool]) -> Iterator[str]:
        named = (each for name in _STATISTICS for each in metadata.body.get(name) or ())
        return (self.layout.path(each["statistics-path"]) for each in named if of(each["snapshot-id"]))

    def of_metadata(self, metadata: Metadata) -> Iterator[str]:
        """The metadata file, those in its log, and statistics that it still has of snapshots that are gone."""
        yield metadata.path
        yield from self._statistics(metadata, lambda number: number not in metadata.snapshots)
        yield from (self.layout.path(each["metadata-file"]) for each in metadata.body.get("metadata-log") or ())

    def _read(self, metadata: Metadata, snapshot: int, manifests: Iterable[Manifest]) -> None:
        new = [each for each in manifests if each not in self._live]
        if not new:
            return
        # The number of a partition does not matter here.
        self._partitions = Partitions.of(metadata, () if self._partitions is None else self._partitions.found)
        found = read_entries(self.layout, metadata.snapshots[snapshot], self._partitions, None, new)
        for manifest, entries in found.by_manifest.items():
            live = entries.filter(pc.not_equal(entries["status"], integer(DELETED)))
            self._live[manifest] = self._paths(live, metadata)
            self._all[manifest] = self._paths(entries, metadata)

    def _paths(self, entries: Any, metadata: Metadata) -> tuple[str, ...]:
        return tuple(self.layout.paths(entries["path"].unique(), metadata.location).to_pylist())
