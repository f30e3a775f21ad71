"""Manifest entries for writing. The DELETE entry of a file repeats its ADD entry, field by field.

Most fields of an entry belong to the file's identity, and newer releases have added some. So a file is deleted with the
same record that added it, written with the same Avro schema.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from dv_maintenance.errors import DamagedTableError, DvMaintenanceError, UnsupportedFeatureError
from dv_maintenance.files.avro.container import read_records
from dv_maintenance.files.avro.writer import Template, template_of, write_records
from dv_maintenance.tables.paimon.layout import Layout
from dv_maintenance.tables.paimon.log.manifests import ADD, DELETE, manifest_files, placed

if TYPE_CHECKING:
    from dv_maintenance.tables.paimon.snapshot import PaimonSnapshot

FileId = tuple[bytes, int, str]
"""Row of the partition, bucket and name."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A manifest entry.

    template : the Avro schema to write it with.
    """

    template: Template
    record: Mapping[str, Any]

    @property
    def file(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.record["_FILE"]
        return found

    @property
    def id(self) -> FileId:
        return self.record["_PARTITION"], self.record["_BUCKET"], self.file["_FILE_NAME"]


def read_whole(layout: Layout, name: str, version: int) -> tuple[Template, list[dict[str, Any]]]:
    """Read a file of the manifest folder: its Avro schema, and its records with all fields.

    Raises
    ------
    DamagedTableError : the file is damaged or missing; the message names it.
    RefusedError : fastavro is not installed.
    """
    try:
        data = layout.storage.get(layout.manifest(name))
        return template_of(data), list(read_records(data, None))
    except FileNotFoundError:
        raise placed(layout, DamagedTableError("it does not exist"), version, name) from None
    except DvMaintenanceError as error:
        raise placed(layout, error, version, name) from error.__cause__


def newest_template(layout: Layout, snapshot: PaimonSnapshot) -> Template:
    """The Avro schema of a snapshot's newest manifest; the snapshot must have files. Raises as :func:`read_whole`."""
    assert snapshot.file is not None, "a table with files has a snapshot"
    for name in (snapshot.file.delta_list, snapshot.file.base_list):
        if manifests := manifest_files(layout, name, snapshot.version):
            return read_whole(layout, manifests[-1].name, snapshot.version)[0]
    raise DamagedTableError("it has files, but no manifest", table=layout.uri, version=snapshot.version)


def added_entries(layout: Layout, snapshot: PaimonSnapshot, wanted: Mapping[FileId, int]) -> dict[FileId, Entry]:
    """The entries that added the ``wanted`` files.

    wanted : file -> position of its manifest in ``live.manifests``.

    Raises
    ------
    DamagedTableError : a manifest cannot be read, or has changed.
    """
    found: dict[FileId, Entry] = {}
    for place in sorted(set(wanted.values())):
        name = snapshot.live.manifests[place]
        template, records = read_whole(layout, name, snapshot.version)
        for record in records:
            entry = Entry(template, record)
            if record["_KIND"] == ADD and entry.id in wanted:
                found[entry.id] = entry
    if missing := set(wanted) - set(found):
        raise DamagedTableError(
            f"the live file {min(missing)[2]} is no longer in its manifest", table=layout.uri, version=snapshot.version
        )
    return found


def removal(entry: Entry) -> Entry:
    return Entry(entry.template, {**entry.record, "_KIND": DELETE})


def written(entries: Sequence[Entry]) -> list[tuple[bytes, list[Mapping[str, Any]]]]:
    """Encode the entries as manifests, one or more per Avro schema. Returns the bytes and the records of each."""
    groups: dict[Template, list[Mapping[str, Any]]] = {}
    for entry in entries:
        groups.setdefault(entry.template, []).append(entry.record)
    return [
        (write_records(template, [dict(each) for each in part]), part)
        for template, records in groups.items()
        for part in (records[at : at + _PER_MANIFEST] for at in range(0, len(records), _PER_MANIFEST))
    ]


# About 8 MB, Paimon's default for manifest.target-file-size.
_PER_MANIFEST: Final = 20_000


def filled(values: Mapping[str, Any], types: Mapping[str, Any], what: str) -> dict[str, Any]:
    """A record with exactly the fields in ``types``. Fields without a value are null.

    Raises
    ------
    UnsupportedFeatureError : a field has no value, and may not be null.
    """
    record = {}
    for name, kind in types.items():
        if name not in values and not (isinstance(kind, list) and "null" in kind):
            raise UnsupportedFeatureError(
                f"{what} of this table have a field {name}, which this release cannot fill",
                features=(f"field {name}",),
                next_step="use a newer release of this tool, or Paimon itself",
            )
        record[name] = values.get(name)
    return record
