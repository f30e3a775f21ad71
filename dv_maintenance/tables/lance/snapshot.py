"""A Lance table at one version."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from dv_maintenance.storage import Storage
from dv_maintenance.tables.lance.features import MANAGED_BLOBS, STABLE_ROW_IDS, check_no_overlays, check_readable
from dv_maintenance.tables.lance.log.manifest import Fragment, Manifest
from dv_maintenance.tables.lance.log.versions import load_manifest, naming_manifest
from dv_maintenance.tables.lance.rows.files import counted, counts_are_known, files_table
from dv_maintenance.tables.lance.rows.schema import arrow_schema, lance_fields
from dv_maintenance.tables.model import Snapshot
from dv_maintenance.tables.partition_spec import by_columns
from dv_maintenance.units import count, parse_count

_COMPACTION: Final = "lance.compaction."
_TARGET_ROWS: Final = 1 << 20
# Estimated memory of a fragment with a data file and a deletion file, and of its record.
_FRAGMENT_BYTES: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class LanceSnapshot(Snapshot):
    """One version of a Lance table. ``files`` has the schema ``files.FILES``, one row per fragment; Lance has no
    partitions. ``properties`` is the table's config.

    manifest : the manifest of the version.
    fragments : in the order of ``files``, with known counts.
    stored : the same fragments as the manifest records them; counts may be missing.
    naming : naming scheme of the manifests, V1 or V2.
    """

    manifest: Manifest
    fragments: tuple[Fragment, ...] = field(repr=False)
    stored: tuple[Fragment, ...] = field(repr=False)
    naming: str

    @property
    def bytes(self) -> int:
        return int(self.files.get_total_buffer_size()) + _FRAGMENT_BYTES * len(self.fragments)

    @property
    def stable_row_ids(self) -> bool:
        return bool(self.manifest.reader_flags & STABLE_ROW_IDS)


def load_snapshot(storage: Storage, version: int | None = None, *, known: LanceSnapshot | None = None) -> LanceSnapshot:
    """The table at a version, the newest by default: one listing and one read, unless the manifest lacks counts.

    known : an earlier snapshot of the same table. A manifest repeats all fragments. Those that did not change are not
        parsed again.

    Raises
    ------
    TableNotFoundError : the table has no versions.
    UsageError : the version does not exist.
    RefusedError : the manifests have both naming schemes.
    UnsupportedFeatureError : reader flags or types that are unknown here.
    DamagedTableError : names the damaged file.
    """
    file, manifest = load_manifest(storage, version)
    check_readable(manifest, storage.uri)
    with naming_manifest(storage, file.path, file.version):
        parsed = {} if known is None else dict(zip(known.manifest.fragment_records, known.stored, strict=True))
        stored = manifest.fragments(parsed)
        check_no_overlays(stored, manifest, storage.uri)
        schema = arrow_schema(lance_fields(manifest.field_records), manifest.schema_metadata)
        fragments = counted(storage, manifest, stored)
        rows = files_table(storage, manifest, fragments)
    unerased = _unerased(manifest)
    return LanceSnapshot(
        table=storage.uri,
        format="lance",
        version=manifest.version,
        timestamp=manifest.timestamp,
        schema=schema,
        specs=by_columns(),
        properties=manifest.config,
        files=rows,
        warnings=(*_warnings(manifest, stored, fragments), *unerased),
        notes=unerased,
        unerased=unerased,
        target_rows=_target_rows(manifest),
        manifest=manifest,
        fragments=fragments,
        stored=stored,
        naming=file.scheme,
    )


def _target_rows(manifest: Manifest) -> int:
    """The table's own setting, otherwise Lance's default. An invalid setting is ignored; Lance would refuse it."""
    return parse_count(manifest.config.get(f"{_COMPACTION}target_rows_per_fragment", "")) or _TARGET_ROWS


def _warnings(manifest: Manifest, stored: tuple[Fragment, ...], fragments: tuple[Fragment, ...]) -> tuple[str, ...]:
    warnings = []
    unknown = sum(not counts_are_known(manifest, fragment) for fragment in stored)
    if unknown:
        warnings.append(
            f"{count(unknown, 'fragment')} counted from files: an old writer recorded no counts, or unreliable ones"
        )
    paths = [file.path for fragment in fragments for file in fragment.files]
    if len(set(paths)) < len(paths):
        warnings.append("a data file is part of more than one fragment: its rows are read more than once")
    return tuple(warnings)


def _unerased(manifest: Manifest) -> tuple[str, ...]:
    """Where a purge and a vacuum leave bytes of deleted rows: in objects that rows share, and outside the table."""
    found = []
    if (manifest.reader_flags | manifest.writer_flags) & MANAGED_BLOBS:
        found.append(
            "managed blobs: an object in _blobs keeps the blobs of deleted rows as long as a live row names it; with "
            "lance.blob.managed = false in the schema's metadata, a purge copies the live ones"
        )
    if outside := sorted(base.path for base in manifest.base_paths.values() if not base.is_root):
        found.append(f"files in the base path {', '.join(outside)} are in no table's folder: no vacuum deletes them")
    return tuple(found)
