"""Which parts of a planned commit still hold after other writers committed first: decisions only, no storage.

A replacement exchanges logical files, so it depends only on its inputs. While all of them are live, the exchange is
right, whatever other writers appended, deleted or rewrote concurrently (snapshot isolation).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from dv_maintenance.errors import DamagedTableError
from dv_maintenance.tables.delta.log.actions import Action, Metadata, Protocol, parse_domain
from dv_maintenance.tables.delta.log.bulk import dv_id
from dv_maintenance.tables.delta.rows.row_tracking import stored_columns
from dv_maintenance.tables.delta.vacuum.running import VacuumMark, marks_of
from dv_maintenance.tables.model import FileKey
from dv_maintenance.tables.table import Replacement

# Features that prescribe the form of data files or their actions: files written before such a feature was enabled may
# break its rules. (protocol: Column Mapping, Row Tracking, Iceberg Compatibility, Materialize Partition Columns)
_LAYOUT_FEATURES: Final = frozenset(
    {
        "columnMapping",
        "icebergCompatV1",
        "icebergCompatV2",
        "icebergCompatV3",
        "materializePartitionColumns",
        "rowTracking",
        "variantShredding",
        "variantShredding-preview",
    }
)
# Field metadata that no data file depends on; an append to a table with an identity column moves the mark.
_HARMLESS_FIELD_METADATA: Final = frozenset({"comment", "delta.identity.highWaterMark"})


@dataclass(slots=True)
class Since:
    """The combined effect of the commits after a base version, absorbed one by one, oldest first.

    identify : maps a raw path to the file's canonical path (``Storage.path_of``), since the writers of a log may
        percent-encode differently.
    """

    version: int
    identify: Callable[[str], str]
    gone: set[FileKey] = field(default_factory=set)  # keys whose last action is a remove
    added: set[str] = field(default_factory=set)  # paths that were added, whether or not they are gone again
    current: dict[str, Any] = field(default_factory=dict)  # by path, the newest add, unless it is gone
    moved: set[str] = field(default_factory=set)  # gone paths that a rewrite removed: their rows are elsewhere
    protocol: Protocol | None = None  # the newest one set by a commit
    metadata: Metadata | None = None
    domains: dict[str, str | None] = field(default_factory=dict)  # those set by commits; None for a removed one
    in_commit_timestamp: int | None = None  # of the newest commit
    vacuums: list[VacuumMark] = field(default_factory=list)  # STARTs and ENDs, oldest first

    def absorb(self, actions: Iterable[Action], *, where: str) -> None:
        """Absorb the commit of the next version. Raises DamagedTableError naming ``where``."""
        added: dict[FileKey, Any] = {}
        removed: dict[FileKey, Any] = {}
        self.in_commit_timestamp = None
        for action in actions:
            for kind, body in action.items():
                match kind:
                    case "add":
                        added[logical_key(body, self.identify, where=where)] = body
                    case "remove":
                        removed[logical_key(body, self.identify, where=where)] = body
                    case "protocol":
                        self.protocol = Protocol.from_json(body, where=where)
                    case "metaData":
                        self.metadata = Metadata.from_json(body, where=where)
                    case "domainMetadata":
                        domain, configuration = parse_domain(body, where=where)
                        self.domains[domain] = configuration
                    case "commitInfo" if isinstance(body, dict):
                        timestamp = body.get("inCommitTimestamp")
                        self.in_commit_timestamp = timestamp if type(timestamp) is int else None
                        self.vacuums += marks_of(self.version + 1, body)
        # The actions of one commit have no order, and no commit may both add and remove a key (protocol: Action
        # Reconciliation). If a writer breaks that rule, the cautious reading is that the file is gone.
        self.gone = (self.gone - added.keys()) | removed.keys()
        self.added.update(key.path for key in added)
        for key, body in removed.items():
            self.current.pop(key.path, None)
            if body.get("dataChange") is False:
                self.moved.add(key.path)
        for key, body in added.items():
            if key not in removed:
                self.current[key.path] = body
                self.moved.discard(key.path)
        self.version += 1


def logical_key(body: Any, identify: Callable[[str], str], *, where: str) -> FileKey:
    """The key of an add or remove action. Raises DamagedTableError naming ``where``."""
    path = body.get("path") if isinstance(body, dict) else None
    if not isinstance(path, str):
        raise DamagedTableError(f"{where}: an add or remove has no path")
    try:
        return FileKey(identify(path), dv_id(body.get("deletionVector")))
    except TypeError as error:
        raise DamagedTableError(f"{where}: {error}") from None


def lost_replacements(replacements: Sequence[Replacement], base: Container[FileKey], since: Since) -> dict[str, str]:
    """Ids of the replacements that can no longer be committed, each with the reason.

    ``base``: raw keys that are live at the base version. A replacement is lost as soon as one input is no longer live.
    """
    lost = {}
    for replacement in replacements:
        for key in replacement.inputs:
            if key not in base:
                lost[replacement.id] = f"{key.path} was no longer live with the DV it was planned with"
                break
            if FileKey(since.identify(key.path), key.dv_id) in since.gone:
                lost[replacement.id] = f"another writer removed {key.path} or changed its DV"
                break
    return lost


def layout_change(protocol: Protocol, metadata: Metadata, since: Since) -> str | None:
    """Why files written under ``protocol`` and ``metadata`` no longer fit the table; ``None`` if they do."""
    if since.protocol is not None:
        new = (since.protocol.features("writer") - protocol.features("writer")) & _LAYOUT_FEATURES
        if new:
            return f"another writer enabled {', '.join(sorted(new))}"
    if since.metadata is None:
        return None
    if since.metadata.id != metadata.id:
        return "another writer replaced the table"
    if since.metadata.partition_columns != metadata.partition_columns:
        return "another writer changed the partition columns"
    if _mapping(since.metadata) != _mapping(metadata):
        return "another writer changed the column mapping"
    if _shape(since.metadata) != _shape(metadata):
        return "another writer changed the schema"
    # A rewrite that began before the change stored no row ids, or stored them under other names.
    if stored_columns(since.protocol or protocol, since.metadata) != stored_columns(protocol, metadata):
        return "another writer changed row tracking"
    return None


def _mapping(metadata: Metadata) -> str:
    return metadata.configuration.get("delta.columnMapping.mode", "none").lower()


def _shape(metadata: Metadata) -> Any:
    """The schema without field metadata that data files do not depend on."""
    try:
        return _without_notes(orjson.loads(metadata.schema_string))
    except orjson.JSONDecodeError:
        return metadata.schema_string  # damaged: other checks report it; here it is equal only to itself


def _without_notes(node: Any) -> Any:
    if isinstance(node, list):
        return [_without_notes(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {
        key: {name: item for name, item in value.items() if name not in _HARMLESS_FIELD_METADATA}
        if key == "metadata" and isinstance(value, dict)
        else _without_notes(value)
        for key, value in node.items()
    }
