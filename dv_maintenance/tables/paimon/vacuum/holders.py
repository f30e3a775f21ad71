"""What keeps files of a table alive: snapshots, tags and changelogs of every branch.

Reading them is not atomic: other processes may commit, expire, tag, branch and roll back meanwhile. The result is still
complete for files that were referenced before the read began. If a file vanishes during the read, the read starts
again, so a rename hides nothing. A caller that deletes files reads the references again after it has deleted the
snapshots that named them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from dv_maintenance.errors import (
    ConflictError,
    DamagedTableError,
    RefusedError,
    TableNotFoundError,
    UnsupportedFeatureError,
)
from dv_maintenance.tables.paimon.layout import CHANGELOG, SCHEMA, Layout, numbered
from dv_maintenance.tables.paimon.log.documents import Document
from dv_maintenance.tables.paimon.log.refs import branches, consumers
from dv_maintenance.tables.paimon.log.schema import read_schema
from dv_maintenance.tables.paimon.log.snapshots import all_versions, parse_snapshot
from dv_maintenance.tables.paimon.vacuum.retention import produces_changelog
from dv_maintenance.tables.parallel import in_parallel

_ATTEMPTS: Final = 5
_TAG: Final = "tag-"
_CHANGELOG: Final = "changelog-"
_DEPTH: Final = 16
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
# Fields of snapshot files in Paimon 2.1 and earlier releases.
_KNOWN: Final = frozenset({
    "version", "id", "schemaId", "baseManifestList", "baseManifestListSize", "deltaManifestList",
    "deltaManifestListSize", "changelogManifestList", "changelogManifestListSize", "indexManifest", "commitUser",
    "commitIdentifier", "commitKind", "timeMillis", "logOffsets", "totalRecordCount", "deltaRecordCount",
    "changelogRecordCount", "recordCount", "watermark", "statistics", "properties", "nextRowId", "uuid",
    "writerVersion", "operation", "tagCreateTime", "tagTimeRetained",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ref:
    """A snapshot, a tag or a changelog, with the files that it names.

    path : path of its own file.
    timestamp : epoch milliseconds.
    base, delta, changelog : names of its manifest lists.
    index, statistics : names of its index manifest and its statistics file.
    sizes : bytes of the manifest lists that have a recorded size, by name.
    data : content of its own file.
    is_changelog : whether it is the changelog of an expired snapshot. Many of the files that it names may be gone.
    deltas : whether, without a list of changes, the changes are the files that it appended.
    """

    path: str
    id: int
    timestamp: int
    base: str | None
    delta: str | None
    changelog: str | None
    index: str | None
    statistics: str | None
    sizes: Mapping[str, int] = field(repr=False)
    data: bytes = field(repr=False)
    is_changelog: bool = False
    deltas: bool = True


@dataclass(frozen=True, slots=True)
class Branch:
    """The references of one branch: ``snapshots`` and ``changelogs`` by id, oldest first; ``tags`` by name; ``served``,
    by name what only the server of a REST catalog names.
    """

    snapshots: Mapping[int, Ref]
    tags: Mapping[str, Ref] = field(default_factory=dict)
    changelogs: Mapping[int, Ref] = field(default_factory=dict)
    served: Mapping[str, Ref] = field(default_factory=dict)

    @property
    def newest(self) -> int:
        return max(self.snapshots, default=0)


@dataclass(frozen=True, slots=True)
class Holders:
    """Everything that keeps files of a table.

    branches : by name; ``None`` is the main branch.
    consumers : consumer -> the snapshot that it reads next; only of the branch that is vacuumed.
    """

    branches: Mapping[str | None, Branch]
    consumers: Mapping[str, int]


class _VanishedError(Exception):
    """A file vanished before it could be read; the text names it."""


def read_holders(layout: Layout, before: Holders | None = None) -> Holders:
    """Read the references. Snapshots in ``before`` are not read again if its newest one is unchanged, which excludes a
    rollback and a fast-forward.

    Raises
    ------
    DamagedTableError, UnsupportedFeatureError : a file cannot be read or understood, or there is a gap between
        snapshots; the message names the file.
    RefusedError : a branch is a symbolic link.
    ConflictError : files vanished in every attempt to read them.
    """
    reason = ""
    for _ in range(_ATTEMPTS):
        try:
            return _read_holders(layout, before)
        except _VanishedError as vanished:
            reason = str(vanished)
    raise ConflictError(f"while the references of the table were read, {reason}", table=layout.uri)


def moved(before: Branch, after: Branch) -> str | None:
    """Why the earlier read of a branch is no longer valid; ``None`` if it still is.

    Commits add newer snapshots, and expiry deletes the oldest. Any other change is a rollback, a fast-forward, or a
    different table.
    """
    if not before.snapshots:
        return None
    newest = before.newest
    if not after.snapshots:
        return f"snapshot {newest} was the newest, and now the branch has no snapshot"
    if after.newest < newest:
        return f"its newest snapshot was {newest} and is now {after.newest}: it was rolled back"
    if newest not in after.snapshots:
        return f"snapshots up to {newest}, its newest one, were expired by another process"
    if after.snapshots[newest].data != before.snapshots[newest].data:
        return f"its snapshot {newest} was replaced: the table was rolled back and written to again"
    if strange := sorted(set(after.snapshots) - set(before.snapshots) - set(range(newest + 1, after.newest + 1))):
        return f"snapshot {strange[0]} came back"
    return None


# -- reading ------------------------------------------------------------------------------------------------------


def _read_holders(layout: Layout, before: Holders | None) -> Holders:
    _check_no_links(layout)
    found = {}
    for name in (None, *branches(layout)):
        known = None if before is None else before.branches.get(name)
        of_branch = Layout(layout.storage, name)
        # Changelogs after snapshots: expiry writes the changelog before it deletes the snapshot.
        snapshots, same = _snapshots(of_branch, known)
        changelogs = _changelogs(of_branch, known if same else None)
        found[name] = Branch(snapshots, _tags(of_branch), changelogs)
    own = found.get(layout.branch)
    if own is None:
        raise TableNotFoundError("there is no such branch", table=layout.uri, next_step="check the table's path")
    _check_no_gap(layout, own)
    return Holders(found, consumers(layout))


def _check_no_links(layout: Layout) -> None:
    """Refuse branches that are symbolic links. Listings do not follow links, so such a branch would be missed."""
    if not layout.storage.is_local:
        return
    try:
        with layout.storage.access.scan(layout.storage.local("branch")) as entries:
            links = [entry.name for entry in entries if entry.is_symlink()]
    except FileNotFoundError:
        return
    if links:
        raise RefusedError(
            f"branch/{links[0]} is a symbolic link, so it is unknown what else uses the branch",
            table=layout.uri,
            next_step="move the branch's folder to where the link is",
        )


def _check_no_gap(layout: Layout, branch: Branch) -> None:
    ids = list(branch.snapshots)
    missing = next((one + 1 for one, other in pairwise(ids) if other != one + 1), None)
    if missing is None:
        return
    # A concurrent expiry may cause an apparent gap, since a listing is not atomic.
    again = all_versions(layout)
    if again != ids:
        raise _VanishedError(f"its snapshots changed from {ids[0]}..{ids[-1]}")
    raise DamagedTableError(
        f"{layout.snapshot(missing)} is missing, which leaves a gap",
        table=layout.uri,
        version=branch.newest,
        next_step="remove the snapshots before the gap with CALL sys.repair_earliest_snapshot, or restore missing ones",
    )


def _snapshots(layout: Layout, known: Branch | None) -> tuple[dict[int, Ref], bool]:
    """Snapshots by id, and whether the newest one in ``known`` is unchanged, which excludes a rollback."""
    try:
        ids = all_versions(layout)
    except TableNotFoundError:
        raise DamagedTableError(
            "the branch has neither schemas nor snapshots, so the files that it needs are unknown",
            table=layout.uri,
            next_step="run again if it is being created or deleted now; otherwise delete it, or restore its files",
        ) from None
    reusable: Mapping[int, Ref] = {}
    if known is not None and known.newest in ids:
        newest = known.snapshots[known.newest]
        if _ref(layout, newest.path, known.newest).data == newest.data:
            reusable = known.snapshots
    new = [number for number in ids if number not in reusable]
    read = dict(zip(new, in_parallel(layout.storage, new, lambda n: _ref(layout, layout.snapshot(n), n)), strict=True))
    return {number: reusable.get(number) or read[number] for number in ids}, bool(reusable)


def _tags(layout: Layout) -> dict[str, Ref]:
    """Tags by name. They are read each time, because a tag can be moved to another snapshot."""
    names = sorted(name for name in layout.names("tag") if name.startswith(_TAG))
    read = in_parallel(layout.storage, names, lambda name: _ref(layout, f"{layout.own}tag/{name}", None))
    return {name.removeprefix(_TAG): ref for name, ref in zip(names, read, strict=True)}


def _changelogs(layout: Layout, known: Branch | None) -> dict[int, Ref]:
    ids = sorted(n for name in layout.names(CHANGELOG) if (n := numbered(name, _CHANGELOG)) is not None)
    if not ids:
        return {}
    deltas = changes_in_deltas(layout)
    own = {} if known is None else {number: ref for number, ref in known.changelogs.items() if ref.deltas == deltas}
    new = [number for number in ids if number not in own]
    read = in_parallel(layout.storage, new, lambda number: _changelog(layout, number, deltas))
    found = dict(zip(new, read, strict=True))
    return {number: own.get(number) or found[number] for number in ids}


def changes_in_deltas(layout: Layout) -> bool:
    """Whether the changes of a changelog without a list of changes may be the files that its snapshot appended. True if
    any schema has no ``changelog-producer``. Reads each schema once.

    Raises
    ------
    DamagedTableError, UnsupportedFeatureError : as ``schema.read_schema``.
    RefusedError : a schema has an unknown producer.
    """
    ids = sorted(n for name in layout.names(SCHEMA) if (n := numbered(name, "schema-")) is not None)
    schemas = in_parallel(layout.storage, ids, lambda number: read_schema(layout, number))
    return not schemas or not all(produces_changelog(each.options, layout.uri) for each in schemas)


def read_ref(layout: Layout, path: str, number: int) -> Ref:
    """Read the file of a snapshot. Raises FileNotFoundError, DamagedTableError, UnsupportedFeatureError."""
    try:
        return _ref(layout, path, number)
    except _VanishedError as vanished:
        raise FileNotFoundError(path) from vanished


def _ref(layout: Layout, path: str, number: int | None) -> Ref:
    found = parsed_ref(layout, path, _content(layout, path))
    if number is not None and found.id != number:
        raise Document(layout.uri, path, {}).damaged(f"it holds snapshot {found.id}")
    return found


def parsed_ref(layout: Layout, path: str, data: bytes) -> Ref:
    """The snapshot or tag of this content. Raises DamagedTableError, UnsupportedFeatureError."""
    document = _document(layout, path, data)
    file = parse_snapshot(document)
    return Ref(
        path,
        file.id,
        file.timestamp,
        file.base_list,
        file.delta_list,
        file.changelog_list,
        file.index_manifest,
        document.optional_file_name("statistics"),
        _sizes(document),
        data,
    )


def _changelog(layout: Layout, number: int, deltas: bool) -> Ref:
    """Read a changelog. It need not name all lists of its snapshot."""
    path = layout.changelog(number)
    data = _content(layout, path)
    document = _document(layout, path, data)
    base, delta, changelog, index, statistics = (
        document.optional_file_name(name)
        for name in ("baseManifestList", "deltaManifestList", "changelogManifestList", "indexManifest", "statistics")
    )
    if (document.optional_integer("version") or 1) > 3:
        raise UnsupportedFeatureError(
            f"{path} has format version {document.integer('version')}; this release reads up to 3",
            features=(f"changelog version {document.integer('version')}",),
            table=layout.uri,
            next_step="use a newer release of this tool",
        )
    timestamp = document.integer("timeMillis")
    if document.integer("id") != number:
        raise document.damaged(f"it holds changelog {document.integer('id')}")
    sizes = _sizes(document)
    return Ref(path, number, timestamp, base, delta, changelog, index, statistics, sizes, data, True, deltas)


def _content(layout: Layout, path: str) -> bytes:
    try:
        return layout.storage.get(path)
    except FileNotFoundError:
        raise _VanishedError(f"{path} vanished") from None


def _document(layout: Layout, path: str, data: bytes) -> Document:
    document = Document.parse(layout.uri, path, data)
    unknown = [key for key, value in document.body.items() if key not in _KNOWN and _may_name_files(value)]
    if unknown:
        raise UnsupportedFeatureError(
            f"{path} has a field {unknown[0][:100]!r} that this release does not know and that may name files",
            features=tuple(each[:100] for each in unknown),
            table=layout.uri,
            next_step="use a newer release of this tool, or CALL sys.expire_snapshots and sys.remove_orphan_files",
        )
    return document


def _sizes(document: Document) -> dict[str, int]:
    names = {"baseManifestList", "deltaManifestList", "changelogManifestList"}
    found = {name: (document.optional_file_name(name), document.body.get(f"{name}Size")) for name in names}
    return {name: size for name, size in found.values() if name is not None and type(size) is int and size >= 0}


def _may_name_files(value: object, depth: int = 0) -> bool:
    """Whether a value may contain a file name: Paimon's file names contain a UUID. True if it is nested too deeply."""
    if isinstance(value, str):
        return _UUID.search(value) is not None
    if isinstance(value, Mapping | list):
        below = value.values() if isinstance(value, Mapping) else value
        return depth > _DEPTH or any(_may_name_files(each, depth + 1) for each in below)
    return False
