"""Which files of ``_delta_log`` make up a version, and the actions of a commit file.

Nothing here trusts ``_last_checkpoint``: it only suggests where a listing can start.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import orjson

from dv_maintenance.errors import DamagedTableError, StorageUnavailableError, TableNotFoundError, UsageError
from dv_maintenance.storage import FileInfo, Storage, stamp_of
from dv_maintenance.tables.delta.log.actions import Action
from dv_maintenance.tables.delta.log.pointer import hinted
from dv_maintenance.tables.delta.log.ratified import RatifiedStorage
from dv_maintenance.tables.not_found import not_found
from dv_maintenance.tables.table import Probe

# Protocol: Actions, and V2 Spec checkpoints. Readers must ignore everything else in a line.
_KINDS = frozenset(
    {
        "add",
        "remove",
        "metaData",
        "protocol",
        "txn",
        "domainMetadata",
        "commitInfo",
        "cdc",
        "checkpointMetadata",
        "sidecar",
    }
)

LOG = "_delta_log"
_READ_THREADS = 16

_COMMIT = re.compile(r"(\d{20})\.json")
_COMPACTED = re.compile(r"(\d{20})\.(\d{20})\.compacted\.json")
_CHECKSUM = re.compile(r"(\d{20})\.crc")
_CLASSIC = re.compile(r"(\d{20})\.checkpoint\.parquet")
_MULTIPART = re.compile(r"(\d{20})\.checkpoint\.(\d{10})\.(\d{10})\.parquet")
_MAX_VERSION = 2**63 - 1  # the largest version that readers in Java can represent
_V2 = re.compile(r"(\d{20})\.checkpoint\.[0-9a-fA-F-]{36}\.(?:parquet|json)")


@dataclass(frozen=True, slots=True)
class CommitFile:
    """A commit (``start == end``) or a compacted range of commits.

    modified : epoch milliseconds.
    size : bytes; -1 if unknown.
    """

    path: str
    start: int
    end: int
    modified: int
    size: int = -1


@dataclass(frozen=True, slots=True)
class LogSegment:
    """The files that together make up one version: at most one checkpoint, then ``commits`` in order without a gap.

    modified : when the version's own commit file (or else its checkpoint) was written, in epoch milliseconds.
    commit : whether the version's own commit file still exists.
    checksum : path of the version's ``.crc``, if there is one.
    last_checksum : version and path of the newest ``.crc`` up to this version, if it is not older than the checkpoint.
    size : bytes of the version's own commit file; -1 if it does not exist.
    """

    version: int
    checkpoint_version: int | None
    checkpoint_files: tuple[FileInfo, ...]
    commits: tuple[CommitFile, ...]
    modified: int
    commit: bool = True
    checksum: str | None = None
    last_checksum: tuple[int, str] | None = None
    warnings: tuple[str, ...] = ()
    size: int = -1

    @property
    def compacted(self) -> bool:
        """Whether a compacted file stands in for commits."""
        return any(file.start < file.end for file in self.commits)


@dataclass(slots=True)
class _Listing:
    commits: dict[int, FileInfo] = field(default_factory=dict)
    compacted: list[CommitFile] = field(default_factory=list)
    checksums: dict[int, str] = field(default_factory=dict)
    checkpoints: dict[int, tuple[FileInfo, ...]] = field(default_factory=dict)  # complete ones only
    links: list[str] = field(default_factory=list)  # to folders

    @property
    def latest(self) -> int | None:
        return max([*self.commits, *self.checkpoints], default=None)

    def __bool__(self) -> bool:
        return bool(self.commits or self.checkpoints)


def checkpoint_path(version: int) -> str:
    """The checkpoint of a version in a single file: the name that this package gives it."""
    return f"{LOG}/{version:020d}.checkpoint.parquet"


def commit_path(version: int) -> str:
    """Path of a commit file, relative to the table."""
    return f"{LOG}/{version:020d}.json"


def latest_version(storage: Storage, known: int | None = None) -> int:
    """The newest version. ``known``: a version seen before; only later files are listed, which is cheaper.

    Raises
    ------
    TableNotFoundError : there is no ``_delta_log``.
    DamagedTableError : ``_delta_log`` holds neither commits nor a complete checkpoint.
    """
    return probe(storage, known).version


def probe(storage: Storage, known: int | None = None) -> Probe:
    """As :func:`latest_version`, with the stamp of the version's commit, or else of its checkpoint."""
    if isinstance(storage, RatifiedStorage):
        return Probe(storage.latest(), storage.stamp)
    start = known if known is not None else _hint(storage)[0]
    # List from the start itself on: an empty listing then means that the start is wrong, not that nothing is new.
    listing = _list(storage, start) or (_list(storage, None) if start is not None else _Listing())
    newest = _latest(storage, listing)
    info = listing.commits.get(newest) or listing.checkpoints[newest][0]
    return Probe(newest, stamp_of(info))


def stamp(storage: Storage, version: int) -> str | None:
    """The stamp of a commit; ``None`` if it was cleaned up. Raises StorageError."""
    if isinstance(storage, RatifiedStorage):
        return storage.stamp
    found = storage.info(commit_path(version))
    return None if found is None else stamp_of(found)


def segment(
    storage: Storage, version: int | None = None, *, checkpoint_below: int | None = None, compacted: bool = True
) -> LogSegment:
    """The files that make up ``version`` (the newest by default).

    ``checkpoint_below`` ignores checkpoints from that version on, for a table whose newest checkpoint cannot be read.
    Without ``compacted``, no compacted file stands in for commits.

    Raises
    ------
    TableNotFoundError : there is no ``_delta_log``.
    UsageError : no such version, or its files have been cleaned up; names the versions that can be read.
    StorageError : the commit is there, but the store does not list it yet.
    DamagedTableError : commits are missing in between.
    """
    if isinstance(storage, RatifiedStorage) and (version is None or version > storage.known.latest):
        storage.latest()
    hint, warnings = _hint(storage)
    listing = _Listing()
    # The hint is useful if the checkpoint it names (or a newer one) exists, is complete and is not too new.
    if hint is not None and checkpoint_below is None and (version is None or version >= hint):
        listing = _list(storage, hint)
    if not any(version is None or at <= version for at in listing.checkpoints):
        listing = _list(storage, None)
        if hint is not None and checkpoint_below is None and hint not in listing.checkpoints:
            warnings = (*warnings, f"_last_checkpoint names version {hint}, which has no complete checkpoint: ignored")
    newest = _latest(storage, listing)
    wanted = newest if version is None else version
    ceiling = wanted if checkpoint_below is None else min(wanted, checkpoint_below - 1)
    base = max((at for at in listing.checkpoints if at <= ceiling), default=None)
    first = 0 if base is None else base + 1
    # The search ends at the first gap: a stray file may name an absurd version.
    gap = next((at for at in range(first, wanted + 1) if at not in listing.commits), None)
    cleaned_up = gap is not None and base is None and 0 not in listing.commits
    if wanted > newest:
        refuse_late_listing(storage, wanted)
    if wanted < 0 or wanted > newest or (cleaned_up and version not in {None, newest}):
        raise UsageError(
            f"version {wanted} does not exist or can no longer be read",
            table=storage.uri,
            next_step=f"choose one of the versions {_available(_list(storage, None))}",
        )
    if gap is not None:
        raise _missing(storage, gap, wanted)
    if not compacted:
        listing.compacted.clear()
    linked = (f"{path} is a link to a folder: dvm neither writes nor deletes in it" for path in listing.links)
    own = listing.commits.get(wanted)
    return LogSegment(
        version=wanted,
        checkpoint_version=base,
        checkpoint_files=() if base is None else listing.checkpoints[base],
        commits=tuple(_chain(listing, first, wanted)),
        modified=own.modified if own else max(file.modified for file in listing.checkpoints[wanted]),
        commit=own is not None,
        checksum=listing.checksums.get(wanted),
        last_checksum=max((each for each in listing.checksums.items() if first - 1 <= each[0] <= wanted), default=None),
        warnings=(*warnings, *linked),
        size=own.size if own else -1,
    )


def complete_checkpoints(storage: Storage, first: int = 0) -> frozenset[int]:
    """Versions from ``first`` on that have a complete checkpoint. Raises StorageError."""
    return frozenset(_list(storage, first).checkpoints)


def refuse_late_listing(storage: Storage, version: int) -> None:
    """Raise StorageError if the commit of a version exists although a listing lacks it."""
    if storage.exists(commit_path(version)):
        raise StorageUnavailableError(
            f"the store's listing of {LOG} lacks a commit that exists",
            table=storage.uri,
            version=version,
            next_step="run again in a moment",
        )


def commit_files(storage: Storage, after: int = -1) -> tuple[list[CommitFile], int]:
    """The commits after a version that still exist, oldest first, and the newest version.

    Raises
    ------
    TableNotFoundError, DamagedTableError : as :func:`latest_version`.
    """
    if isinstance(storage, RatifiedStorage):
        storage.latest()
    # List from `after` itself on: an empty listing then means that something is wrong, not that nothing is new.
    listing = _list(storage, after if after >= 0 else None) or _list(storage, None)
    newest = _latest(storage, listing)
    if newest not in listing.commits and newest not in listing.checkpoints:
        raise _missing(storage, newest, newest)
    files = [CommitFile(info.path, at, at, info.modified, info.size) for at, info in sorted(listing.commits.items())]
    return [file for file in files if file.start > after], newest


def read_commit(storage: Storage, version: int) -> list[Action]:
    """The actions of one commit, each a dict with exactly one key.

    Raises
    ------
    FileNotFoundError : the commit file does not exist.
    DamagedTableError : names the file and the line.
    """
    return read_actions(storage, commit_path(version))


def read_actions(storage: Storage, path: str) -> list[Action]:
    """The actions of a commit, a compacted log or a JSON checkpoint. Raises as :func:`read_commit`."""
    return parse_actions(storage.get(path), where=path, table=storage.uri)


def read_commits(storage: Storage, files: Sequence[CommitFile]) -> Iterator[tuple[CommitFile, list[Action]]]:
    """The actions of many commits, in the order asked for. Object stores are read in parallel."""
    for file, data in read_texts(storage, files):
        yield file, parse_actions(data, where=file.path, table=storage.uri)


def read_texts(storage: Storage, files: Sequence[CommitFile]) -> Iterator[tuple[CommitFile, bytes]]:
    """The bytes of many commits, in the order and manner of :func:`read_commits`."""
    if storage.is_local or len(files) < 2:
        for file in files:
            yield file, _get(storage, file.path)
        return
    with ThreadPoolExecutor(_READ_THREADS) as pool:
        yield from zip(files, pool.map(lambda file: _get(storage, file.path), files), strict=True)


def parse_actions(data: bytes, *, where: str, table: str) -> list[Action]:
    """Newline-delimited actions. Raises DamagedTableError naming the file and the line."""
    text = data.strip()
    try:
        # With a blank or partial line, this is not JSON or has fewer values than lines.
        actions: list[Action] = orjson.loads(b"[" + text.replace(b"\n", b",") + b"]")
        lines = text.count(b"\n") + 1
        if len(actions) == lines and {dict}.issuperset(map(type, actions)) and set(map(len, actions)) == {1}:
            return actions
    except orjson.JSONDecodeError:
        pass
    parsed = (_parse_line(line, where, number, table) for number, line in _numbered(data))
    return [action for action in parsed if action]


def _numbered(data: bytes) -> Iterator[tuple[int, bytes]]:
    return ((number, line) for number, line in enumerate(data.split(b"\n"), 1) if line and not line.isspace())


def _parse_line(line: bytes, where: str, number: int, table: str) -> Action:
    """The action of a line; empty if the line has none that we know (protocol: Requirements for Readers)."""
    try:
        action = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise DamagedTableError(f"{where}, line {number}: not JSON ({error.msg})", table=table) from None
    if not isinstance(action, dict):
        raise DamagedTableError(f"{where}, line {number}: not a JSON object", table=table)
    # Some writers spell out the other kinds of action as nulls.
    present = {kind: body for kind, body in action.items() if kind in _KINDS and body is not None}
    if len(present) > 1:
        raise DamagedTableError(f"{where}, line {number}: {len(present)} actions in one line", table=table)
    return present


def _get(storage: Storage, path: str) -> bytes:
    try:
        return storage.get(path)
    except FileNotFoundError:
        raise DamagedTableError(
            f"{path} disappeared while the log was being read",
            table=storage.uri,
            next_step="run again; if it is still missing, restore it from a backup",
        ) from None


def _hint(storage: Storage) -> tuple[int | None, tuple[str, ...]]:
    """Version that ``_last_checkpoint`` names, and warnings about it."""
    version, wrong = hinted(storage)
    return version, () if wrong is None else (f"_last_checkpoint {wrong}: ignored, the log was listed instead",)


def _list(storage: Storage, start: int | None) -> _Listing:
    """The log's files, from version ``start`` on."""
    after = None if start is None else f"{LOG}/{start:020d}"
    try:
        found = storage.list(LOG, after=after)
    except TableNotFoundError:  # a catalog says so
        raise
    except FileNotFoundError:
        found = []
    if not found and start is None:
        raise not_found(storage, format="delta")
    listing = _Listing()
    parts: dict[tuple[int, int], dict[int, FileInfo]] = {}
    single: dict[int, FileInfo] = {}
    for info in found:
        name = info.path[len(LOG) + 1 :]
        if name[:20].isdecimal() and int(name[:20]) > _MAX_VERSION:
            raise DamagedTableError(
                f"{info.path} names a version that no table can have",
                table=storage.uri,
                next_step="move the file out of the log",
            )
        if info.size < 0:
            if name[:20].isdecimal():
                raise DamagedTableError(
                    f"{info.path} is a link to a folder, where a file of the log should be",
                    table=storage.uri,
                    next_step="replace the link with the file itself, or move the link out of the log",
                )
            listing.links.append(info.path)
        elif match := _COMMIT.fullmatch(name):
            listing.commits[int(match[1])] = info
        elif match := _CHECKSUM.fullmatch(name):
            listing.checksums[int(match[1])] = info.path
        elif match := _CLASSIC.fullmatch(name):
            single[int(match[1])] = info
        elif match := _V2.fullmatch(name):
            # A classic name wins: all checkpoints of a version hold the same state, and this one needs no check.
            single.setdefault(int(match[1]), info)
        elif match := _MULTIPART.fullmatch(name):
            parts.setdefault((int(match[1]), int(match[3])), {})[int(match[2])] = info
        elif (match := _COMPACTED.fullmatch(name)) and info.size:
            # An empty file would mean that its commits changed nothing. A writer that was killed leaves such a file.
            listing.compacted.append(CommitFile(info.path, int(match[1]), int(match[2]), info.modified, info.size))
    for (version, count), files in parts.items():
        if sorted(files) == list(range(1, count + 1)):
            listing.checkpoints[version] = tuple(files[part] for part in sorted(files))
    listing.checkpoints.update({version: (info,) for version, info in single.items()})
    return listing


def _latest(storage: Storage, listing: _Listing) -> int:
    if listing.latest is None:
        raise DamagedTableError(
            "_delta_log holds neither a commit nor a complete checkpoint",
            table=storage.uri,
            next_step="check the path; restore the log from a backup if it was deleted",
        )
    # Without a file for its newest version, such a table has a gap: it is not an older one.
    return storage.known.latest if isinstance(storage, RatifiedStorage) else listing.latest


def _missing(storage: Storage, commit: int, version: int) -> DamagedTableError:
    return DamagedTableError(
        f"commit {commit_path(commit)} is missing",
        table=storage.uri,
        version=version,
        next_step="restore the file from a backup, or repair the log with the tool that wrote it",
    )


def _available(listing: _Listing) -> str:
    """The versions that can be read, as text: ``3 to 17``."""
    oldest = 0 if 0 in listing.commits else min(listing.checkpoints, default=None)
    return "(none)" if oldest is None else f"{oldest} to {listing.latest}"


def _chain(listing: _Listing, first: int, last: int) -> Iterable[CommitFile]:
    """Commits ``first`` to ``last``, with compacted files standing in for the ranges they cover, widest first."""
    ranges: dict[int, CommitFile] = {}
    for file in listing.compacted:
        if first <= file.start < file.end <= last:
            ranges[file.start] = max(file, ranges.get(file.start, file), key=lambda one: one.end)
    at = first
    while at <= last:
        if at in ranges:
            yield ranges[at]
            at = ranges[at].end + 1
        else:
            info = listing.commits[at]
            yield CommitFile(info.path, at, at, info.modified, info.size)
            at += 1
