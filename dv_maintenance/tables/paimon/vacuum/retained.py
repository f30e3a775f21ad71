"""All that keeps files of a table alive, as one look found it: snapshots, tags and changelogs of every branch.

A look is no moment: others commit, expire, tag, branch off and roll back while it reads. What it says is complete all
the same, as far as files are concerned that somebody had before it began: where something vanished under it, it starts
again, so that nothing is missed by being renamed. Whoever deletes looks once more when what named the files is gone.
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

__all__ = ["Branch", "Ground", "Ref", "changes_in_deltas", "look", "moved", "read_ref"]

_ATTEMPTS: Final = 5
_TAG: Final = "tag-"
_CHANGELOG: Final = "changelog-"
_DEPTH: Final = 16
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
# Fields of Paimon 2.1, and those that were there before.
_KNOWN: Final = frozenset({
    "version", "id", "schemaId", "baseManifestList", "baseManifestListSize", "deltaManifestList",
    "deltaManifestListSize", "changelogManifestList", "changelogManifestListSize", "indexManifest", "commitUser",
    "commitIdentifier", "commitKind", "timeMillis", "logOffsets", "totalRecordCount", "deltaRecordCount",
    "changelogRecordCount", "recordCount", "watermark", "statistics", "properties", "nextRowId", "uuid",
    "writerVersion", "operation", "tagCreateTime", "tagTimeRetained",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ref:
    """A snapshot, a tag or a changelog: what its file, at ``path``, names. ``sizes`` of the manifest lists in bytes,
    where it says. ``data``: the file itself. ``rest``: it is what is left of a snapshot, and much of it may be gone;
    ``deltas``: and where it has no list of changes, its changes are in what it appended.
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
    rest: bool = False
    deltas: bool = True


@dataclass(frozen=True, slots=True)
class Branch:
    """``snapshots`` and ``changelogs`` by id, oldest first; ``tags`` by name."""

    snapshots: Mapping[int, Ref]
    tags: Mapping[str, Ref] = field(default_factory=dict)
    changelogs: Mapping[int, Ref] = field(default_factory=dict)

    @property
    def newest(self) -> int:
        return max(self.snapshots, default=0)


@dataclass(frozen=True, slots=True)
class Ground:
    """``branches`` by name, the main one under ``None``. ``consumers``: of the branch that was asked about."""

    branches: Mapping[str | None, Branch]
    consumers: Mapping[str, int]


class _VanishedError(Exception):
    """Something was gone when it was to be read; the text says what."""


def look(layout: Layout, before: Ground | None = None) -> Ground:
    """What there is. Reads of the snapshots only those that are not in ``before``, as long as the newest one that was
    is still the same: neither a rollback nor a fast-forward leaves it.

    Raises
    ------
    DamagedTableError, UnsupportedFeatureError : names the file that cannot be read, or cannot be understood; gaps
        between snapshots.
    RefusedError : branches by symbolic links.
    ConflictError : too much of it vanishes while it is read.
    """
    reason = ""
    for _ in range(_ATTEMPTS):
        try:
            return _look(layout, before)
        except _VanishedError as vanished:
            reason = str(vanished)
    raise ConflictError(f"while the table was looked at, {reason}", table=layout.uri)


def moved(before: Branch, after: Branch) -> str | None:
    """How a branch changed in a way that what was read of it can't be relied on any more; ``None`` if it did not.

    New snapshots come on top; a process that expires takes the oldest ones. Anything else is a rollback, a
    fast-forward, or another table.
    """
    if not before.snapshots:
        return None
    newest = before.newest
    if not after.snapshots:
        return f"snapshot {newest} was there, and there is none any more"
    if after.newest < newest:
        return f"its newest snapshot is {after.newest}, and was {newest}: it was rolled back"
    if newest not in after.snapshots:
        return f"snapshots up to {newest}, its newest one, were expired by somebody else"
    if after.snapshots[newest].data != before.snapshots[newest].data:
        return f"its snapshot {newest} is another one now: it was rolled back and written to"
    if strange := sorted(set(after.snapshots) - set(before.snapshots) - set(range(newest + 1, after.newest + 1))):
        return f"snapshot {strange[0]} came back"
    return None


# -- reading ------------------------------------------------------------------------------------------------------


def _look(layout: Layout, before: Ground | None) -> Ground:
    _check_no_links(layout)
    found = {}
    for name in (None, *branches(layout)):
        known = None if before is None else before.branches.get(name)
        own = Layout(layout.storage, name)
        # Behind the snapshots: whoever takes one of them away has left its changelog before.
        snapshots, same = _snapshots(own, known)
        changelogs = _changelogs(own, known if same else None)
        found[name] = Branch(snapshots, _tags(own), changelogs)
    mine = found.get(layout.branch)
    if mine is None:
        raise TableNotFoundError("there is no such branch", table=layout.uri, next_step="check the table's path")
    _check_no_gap(layout, mine)
    return Ground(found, consumers(layout))


def _check_no_links(layout: Layout) -> None:
    """Links are not followed by listings: a branch behind one would not be seen."""
    if not layout.storage.is_local:
        return
    try:
        with layout.storage.access.scan(layout.storage.local("branch")) as entries:
            links = [entry.name for entry in entries if entry.is_symlink()]
    except FileNotFoundError:
        return
    if links:
        raise RefusedError(
            f"branch/{links[0]} is a symbolic link: nobody knows what else the branch is",
            table=layout.uri,
            next_step="move the branch's folder to where the link is",
        )


def _check_no_gap(layout: Layout, branch: Branch) -> None:
    ids = list(branch.snapshots)
    missing = next((one + 1 for one, other in pairwise(ids) if other != one + 1), None)
    if missing is None:
        return
    # A process that expires may have been in the middle of it, where a listing is no moment.
    again = all_versions(layout)
    if again != ids:
        raise _VanishedError(f"its snapshots changed from {ids[0]}..{ids[-1]}")
    raise DamagedTableError(
        f"{layout.snapshot(missing)} is missing between others",
        table=layout.uri,
        version=branch.newest,
        next_step="remove the snapshots before the gap with CALL sys.repair_earliest_snapshot, or restore the missing",
    )


def _snapshots(layout: Layout, known: Branch | None) -> tuple[dict[int, Ref], bool]:
    """And whether nothing was rolled back since ``known``, as far as its newest snapshot tells."""
    try:
        ids = all_versions(layout)
    except TableNotFoundError:
        raise DamagedTableError(
            "the branch has neither schemas nor snapshots, so that nobody knows which files it needs",
            table=layout.uri,
            next_step="run again if somebody makes or deletes it right now; else delete it, or restore its files",
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
    """Read each time: a tag can be moved to another snapshot."""
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
    """Whether changelogs of the branch without a list of changes may stand for what their snapshots appended: whether
    it ever had no ``changelog-producer``. One read of each schema.

    Raises
    ------
    DamagedTableError, UnsupportedFeatureError : as ``schema.read_schema``.
    RefusedError : a schema has a producer that is not known.
    """
    ids = sorted(n for name in layout.names(SCHEMA) if (n := numbered(name, "schema-")) is not None)
    schemas = in_parallel(layout.storage, ids, lambda number: read_schema(layout, number))
    return not schemas or not all(produces_changelog(each.options, layout.uri) for each in schemas)


def read_ref(layout: Layout, path: str, number: int) -> Ref:
    """A snapshot as its file says it. Raises FileNotFoundError, DamagedTableError, UnsupportedFeatureError."""
    try:
        return _ref(layout, path, number)
    except _VanishedError as vanished:
        raise FileNotFoundError(path) from vanished


def _ref(layout: Layout, path: str, number: int | None) -> Ref:
    document, data = _document(layout, path)
    file = parse_snapshot(document)
    if number is not None and file.id != number:
        raise document.damaged(f"it holds snapshot {file.id}")
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
    """What is left of a snapshot: lists that nobody needs any more may be missing."""
    path = layout.changelog(number)
    document, data = _document(layout, path)
    base, delta, changelog, index, statistics = (
        document.optional_file_name(name)
        for name in ("baseManifestList", "deltaManifestList", "changelogManifestList", "indexManifest", "statistics")
    )
    if (document.optional_integer("version") or 1) > 3:
        raise UnsupportedFeatureError(
            f"{path} is of format version {document.integer('version')}; known are those up to 3",
            features=(f"changelog version {document.integer('version')}",),
            table=layout.uri,
            next_step="use a newer release of this tool",
        )
    timestamp = document.integer("timeMillis")
    if document.integer("id") != number:
        raise document.damaged(f"it holds changelog {document.integer('id')}")
    sizes = _sizes(document)
    return Ref(path, number, timestamp, base, delta, changelog, index, statistics, sizes, data, True, deltas)


def _document(layout: Layout, path: str) -> tuple[Document, bytes]:
    try:
        data = layout.storage.get(path)
    except FileNotFoundError:
        raise _VanishedError(f"{path} vanished") from None
    document = Document.parse(layout.uri, path, data)
    unknown = [key for key, value in document.body.items() if key not in _KNOWN and _may_name_files(value)]
    if unknown:
        raise UnsupportedFeatureError(
            f"{path} has a field {unknown[0][:100]!r} that is not known here and may name files",
            features=tuple(each[:100] for each in unknown),
            table=layout.uri,
            next_step="use a newer release of this tool, or CALL sys.expire_snapshots and sys.remove_orphan_files",
        )
    return document, data


def _sizes(document: Document) -> dict[str, int]:
    names = {"baseManifestList", "deltaManifestList", "changelogManifestList"}
    found = {name: (document.optional_file_name(name), document.body.get(f"{name}Size")) for name in names}
    return {name: size for name, size in found.values() if name is not None and type(size) is int and size >= 0}


def _may_name_files(value: object, depth: int = 0) -> bool:
    """Names that Paimon makes have a UUID in them. Nothing that it writes is nested any deeper."""
    if isinstance(value, str):
        return _UUID.search(value) is not None
    if isinstance(value, Mapping | list):
        below = value.values() if isinstance(value, Mapping) else value
        return depth > _DEPTH or any(_may_name_files(each, depth + 1) for each in below)
    return False
