"""Manifests of a commit: those with removed files are written again, new files go to new ones, all others stay.

Format: Iceberg specification, Manifests and Snapshots. An entry that is kept gets its inherited values in writing; a
removed file has an entry with the status *deleted* in the commit that removed it, and none in later ones.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pyarrow.compute as pc

from dv_maintenance.errors import DamagedTableError, DvMaintenanceError
from dv_maintenance.files.arrays import strings
from dv_maintenance.files.avro.container import read_records
from dv_maintenance.files.avro.writer import Template, template_of, write_records
from dv_maintenance.tables.iceberg.commit.schemas import filled, for_lists, for_manifests, resized
from dv_maintenance.tables.iceberg.commit.summaries import partition_summaries
from dv_maintenance.tables.iceberg.commit.templates import NEW_LIST, new_manifest, partition_fields
from dv_maintenance.tables.iceberg.log.manifests import (
    ADDED,
    DATA,
    DELETED,
    DELETES,
    EXISTING,
    Manifest,
    counted,
    manifest_of,
    placed,
)
from dv_maintenance.tables.parallel import in_parallel

if TYPE_CHECKING:
    from dv_maintenance.tables.iceberg.layout import Layout
    from dv_maintenance.tables.iceberg.rows.partitions import Place
    from dv_maintenance.tables.iceberg.snapshot import IcebergSnapshot
    from dv_maintenance.tables.new_files import NewFiles

DeleteKey = tuple[str, int | None]
"""Path of a delete file, and the offset of a deletion vector in it."""

_PER_MANIFEST: Final = 20_000  # entries: about the 8 MB of commit.manifest.target-size-bytes
_MIN_COUNT: Final = "commit.manifest.min-count-to-merge"
_MERGE: Final = "commit.manifest-merge.enabled"


@dataclass(frozen=True, slots=True)
class NewEntry:
    """A file that a commit adds.

    sequence : age of its rows; ``None``: that of the commit.
    file : the fields of its record by their ids, without content and partition.
    """

    content: int
    partition: Place
    sequence: int | None
    file: Mapping[str, Any]


@dataclass(slots=True)
class ManifestWriter:
    """Writes the manifests and the list of one commit on ``now``.

    snapshot_id, sequence : of the new snapshot.
    """

    layout: Layout
    now: IcebergSnapshot
    files: NewFiles
    snapshot_id: int
    sequence: int
    name: str = field(default_factory=lambda: str(uuid4()))
    _count: int = 0
    _manifests: list[Manifest] = field(init=False)

    def __post_init__(self) -> None:
        self._manifests = list(self.now.entries.by_manifest)

    @property
    def _format(self) -> int:
        return self.now.metadata.format_version

    @property
    def _list(self) -> bytes | None:
        """The base's manifest list; ``None`` if the table has no snapshot, or an old one that names its manifests."""
        entry = self.now.entry
        return None if entry is None or entry.manifest_list is None else self._get(entry.manifest_list)

    def raw(self, name: str) -> str:
        """How the table spells a file of the folder for metadata."""
        return f"{self.layout.metadata_folder(self.now.metadata)}/{name}"

    def write(
        self, removed: Collection[str], removed_deletes: Collection[DeleteKey], new: Sequence[NewEntry]
    ) -> list[dict[str, Any]]:
        """The entries of the new list, by field id. Raises DamagedTableError, UnsupportedFeatureError, StorageError."""
        touched = self._touched(removed, removed_deletes) | self._unlisted()
        together = self._piled_up()
        records = dict(zip(sorted(touched | together), self._read(sorted(touched | together)), strict=True))
        listed: list[dict[str, Any]] = []
        groups: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
        templates: dict[tuple[int, int], Template] = {}
        for number, (template, entries) in records.items():
            manifest = self._manifests[number]
            kept = self._carried(manifest, entries, removed, removed_deletes)
            key = (manifest.content, self._spec_of(manifest))
            if number in together:
                templates.setdefault(key, template)
                groups[key] += kept
            elif kept:
                listed += self._put(template, *key, kept)
        for each in new:
            groups[(DATA if each.content == 0 else DELETES, each.partition[0])].append(self._added(each))
        for (content, spec_id), entries in groups.items():
            template = templates.get((content, spec_id)) or self._template_of(spec_id)
            listed = self._put(template, content, spec_id, entries) + listed
        return listed + self._untouched(touched | together)

    def put_list(self, records: Sequence[Mapping[str, Any]], snapshot: Mapping[str, Any]) -> str:
        """Write the list, and return its location."""
        before = self._list
        template = NEW_LIST if before is None else template_of(before, by_id=True)
        template = for_lists(template, self._format, snapshot)
        fields = template.fields()
        raw = self.raw(f"snap-{self.snapshot_id}-1-{self.name}.avro")
        data = write_records(template, [filled(each, fields, "manifest lists") for each in records])
        self.files.put(self.layout.path(raw), data)
        return raw

    # -- which manifests -------------------------------------------------------------------------------------------

    def _touched(self, removed: Collection[str], removed_deletes: Collection[DeleteKey]) -> set[int]:
        """Positions of the manifests that have a removed file."""
        data = self.now.files
        found = set(data["manifest"].filter(pc.is_in(data["path"], value_set=strings(list(removed)))).to_pylist())
        if removed_deletes:
            deletes = self.now.entries.live(DELETES)
            columns = (deletes[name].to_pylist() for name in ("path", "content_offset", "manifest"))
            found |= {place for path, offset, place in zip(*columns, strict=True) if (path, offset) in removed_deletes}
        return found

    def _unlisted(self) -> set[int]:
        """Positions of manifests that a snapshot names without a list: of these it does not say what a list has to."""
        return {number for number, each in enumerate(self._manifests) if each.spec_id is None}

    def _spec_of(self, manifest: Manifest) -> int:
        entries = self.now.entries.by_manifest[manifest]
        known = entries["spec_id"][0].as_py() if entries.num_rows else 0
        return known if manifest.spec_id is None else manifest.spec_id

    def _piled_up(self) -> set[int]:
        """Positions of small manifests that are to be merged, as there are many of one specification."""
        properties = self.now.metadata.properties
        if properties.get(_MERGE, "true").strip().lower() == "false":
            return set()
        most = _number(properties.get(_MIN_COUNT), 100)
        small: dict[tuple[int, int], list[int]] = defaultdict(list)
        for number, each in enumerate(self._manifests):
            # What a merge leaves is not small, or is the only one.
            if self.now.entries.by_manifest[each].num_rows < _PER_MANIFEST // 2:
                small[each.content, self._spec_of(each)].append(number)
        return {number for numbers in small.values() if len(numbers) > most for number in numbers}

    def _untouched(self, written: Collection[int]) -> list[dict[str, Any]]:
        """The list's entries of the other manifests, without those that have only deleted files. Counts go by what a
        manifest has: those of some writers are wrong, and by them a manifest with live files could be dropped.
        """
        found: list[dict[str, Any]] = []
        before, listed = self._list, {self._manifests[number] for number in written}
        for record in () if before is None else read_records(before, None, by_id=True):
            if (manifest := manifest_of(record)) in listed:
                continue
            listed.add(manifest)
            counts = counted(self.now.entries.by_manifest[manifest])
            if counts[ADDED][0] or counts[EXISTING][0]:
                found.append({"517": DATA, "515": 0, "516": 0, **record, **_fields_of(counts)})
        return found

    # -- entries ---------------------------------------------------------------------------------------------------

    def _carried(
        self,
        manifest: Manifest,
        records: Sequence[Mapping[str, Any]],
        removed: Collection[str],
        removed_deletes: Collection[DeleteKey],
    ) -> list[dict[str, Any]]:
        inherited = self.now.entries.by_manifest[manifest].select(
            ["status", "snapshot_id", "data_sequence", "file_sequence", "first_row_id", "path", "content_offset"]
        )
        rows = inherited.to_pylist()
        if len(rows) != len(records):
            damage = DamagedTableError(f"it has {len(records)} entries, and had {len(rows)} before")
            raise placed(self.layout, damage, self.now.version, manifest.path)
        found = []
        for record, row in zip(records, rows, strict=True):
            if row["status"] == DELETED:
                continue
            if manifest.content == DATA:
                gone = row["path"] in removed
            else:
                gone = (row["path"], row["content_offset"]) in removed_deletes
            file = dict(record["2"])
            if manifest.content == DATA and self._format > 2:
                file["142"] = row["first_row_id"]
            found.append(
                {
                    **record,
                    "0": DELETED if gone else EXISTING,
                    "1": self.snapshot_id if gone else row["snapshot_id"],
                    "3": row["data_sequence"],
                    "4": row["file_sequence"],
                    "2": file,
                }
            )
        return found

    def _added(self, new: NewEntry) -> dict[str, Any]:
        spec_id, values = new.partition
        fields = self.now.metadata.specs[spec_id]
        partition = {str(each.id): value for each, value in zip(fields, values, strict=True)}
        return {
            "0": ADDED,
            "1": self.snapshot_id,
            "3": new.sequence,
            "4": None,
            "2": {**new.file, "134": new.content, "102": partition},
        }

    # -- files -----------------------------------------------------------------------------------------------------

    def _put(
        self, template: Template, content: int, spec_id: int, entries: Sequence[Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        """Write entries as manifests, and return their entries in the list."""
        body = self.now.metadata.body
        specs = body.get("partition-specs") or [{"spec-id": 0, "fields": body.get("partition-spec") or []}]
        fields: list[Any] = next((each["fields"] for each in specs if each["spec-id"] == spec_id), [])
        spec = spec_id, json.dumps(fields, separators=(",", ":"))
        partition = json.dumps(partition_fields(self.now.metadata, spec_id))
        template = for_manifests(template, content, self._format, spec, partition)
        outer, inner, values = template.fields(), template.fields("2"), template.fields("2", "102")
        entries = [{**each, "2": {**each["2"], "102": resized(each["2"]["102"], values)}} for each in entries]
        found = []
        for at in range(0, len(entries), _PER_MANIFEST):
            some = [
                filled({**each, "2": filled(each["2"], inner, "manifests")}, outer, "manifests")
                for each in entries[at : at + _PER_MANIFEST]
            ]
            raw = self.raw(f"{self.name}-m{self._count}.avro")
            self._count += 1
            data = write_records(template, some)
            self.files.put(self.layout.path(raw), data)
            found.append(self._listed(raw, len(data), content, spec_id, some))
        return found

    def _listed(
        self, raw: str, size: int, content: int, spec_id: int, entries: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        counts = dict.fromkeys((ADDED, EXISTING, DELETED), (0, 0))
        for each in entries:
            files, rows = counts[each["0"]]
            counts[each["0"]] = files + 1, rows + each["2"]["103"]
        alive = [each.get("3") for each in entries if each["0"] != DELETED]
        return {
            "500": raw,
            "501": size,
            "502": spec_id,
            "517": content,
            "515": self.sequence,
            "516": min((self.sequence if each is None else each for each in alive), default=self.sequence),
            "503": self.snapshot_id,
            **_fields_of(counts),
            "507": partition_summaries(self.now.metadata, spec_id, [each["2"]["102"] for each in entries]),
            "519": None,
            "520": None,
        }

    def _template_of(self, spec_id: int) -> Template:
        """That of any manifest with the specification, which has the right record of partition values."""
        manifest = next((each for each in self._manifests if self._spec_of(each) == spec_id), None)
        if manifest is None:
            return new_manifest(self.now.metadata, spec_id)
        return template_of(self._get(manifest.path), by_id=True)

    def _read(self, numbers: Iterable[int]) -> list[tuple[Template, list[dict[str, Any]]]]:
        def read(number: int) -> tuple[Template, list[dict[str, Any]]]:
            path = self._manifests[number].path
            try:
                data = self._get(path)
                return template_of(data, by_id=True), list(read_records(data, None, by_id=True))
            except DvMaintenanceError as error:
                raise placed(self.layout, error, self.now.version, path) from error.__cause__

        return list(in_parallel(self.layout.storage, list(numbers), read))

    def _get(self, raw: str) -> bytes:
        try:
            return self.layout.storage.get(self.layout.path(raw))
        except FileNotFoundError as error:
            raise placed(self.layout, error, self.now.version, raw) from error


def _number(text: str | None, default: int) -> int:
    return int(text) if text is not None and text.strip().isdigit() else default


def _fields_of(counts: Mapping[int, tuple[int, int]]) -> dict[str, int]:
    """The fields of a manifest list for how many files and rows have each status."""
    return {
        **{key: counts[status][0] for key, status in (("504", ADDED), ("505", EXISTING), ("506", DELETED))},
        **{key: counts[status][1] for key, status in (("512", ADDED), ("513", EXISTING), ("514", DELETED))},
    }
