"""The log of a table whose commits a catalog ratifies (protocol: Catalog-managed tables).

The catalog says which version is the newest, and which file is the commit of a version, until that is published as
``<version>.json``. Everything else in ``_delta_log`` is as usual, up to that version. Files of ``_staged_commits`` that
the catalog does not name prove nothing: they may be unfinished, or have lost.

To commit is to ask the catalog: see ``commit.ratification``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from dv_maintenance.errors import DamagedTableError, RefusedError, UnsupportedFeatureError
from dv_maintenance.storage import FileInfo, Storage
from dv_maintenance.storage.rehearsal import Rehearsal
from dv_maintenance.tables.registry import CatalogTable, Location
from dv_maintenance.tables.table import is_as_probed

if TYPE_CHECKING:
    import pyarrow as pa

_LOG: Final = "_delta_log"
STAGED: Final = f"{_LOG}/_staged_commits/"
_COMMIT: Final = re.compile(rf"{_LOG}/(\d{{20}})\.json")
# The last version that a file of the log is about.
_ABOUT: Final = re.compile(rf"{_LOG}/(?:\d{{20}}\.)?(\d{{20}})\.(?:json|crc|compacted\.json|checkpoint\..*)")


@dataclass(frozen=True, slots=True)
class UnpublishedCommit:
    """A ratified commit that the catalog still names. ``name``: in ``_staged_commits``. ``modified``: epoch
    milliseconds.
    """

    name: str
    size: int
    modified: int


@dataclass(frozen=True, slots=True)
class Ratified:
    """What the catalog says. ``latest``: the newest version. ``unpublished``: by version, in any order. ``allowed``:
    the maintenance that it permits, by its own names.
    """

    latest: int
    unpublished: Mapping[int, UnpublishedCommit] = field(default_factory=dict)
    allowed: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class StagedCommit:
    """A commit to ratify. ``name``: of its file in ``_staged_commits``. ``timestamp``: the in-commit timestamp.
    ``modified``: when the file was written. Both are epoch milliseconds.

    domains : the configuration of each metadata domain that it sets.
    """

    version: int
    name: str
    size: int
    timestamp: int
    modified: int
    domains: Mapping[str, Any] = field(default_factory=dict)


class TooManyUnpublishedError(Exception):
    """The catalog takes no more commits until those that it holds are published and reported."""


@runtime_checkable
class ManagingCatalog(CatalogTable, Protocol):
    """The handle of a table whose commits a catalog ratifies."""

    @property
    def identity(self) -> str:
        """Differs from that of every other table, also of one that had the name before."""

    def optimizer(self) -> str:
        """What of the catalog's maintains the table, see ``Snapshot.optimizer``. Raises UnsupportedFeatureError for a
        table whose rows are filtered or masked; StorageError.
        """

    def ratified(self) -> Ratified:
        """One request. Raises StorageError, TableNotFoundError, DamagedTableError."""

    def ratify(self, commit: StagedCommit) -> Ratified:
        """Make a staged commit the next version, and return what the catalog says then.

        Raises
        ------
        FileExistsAlreadyError : the version is taken, perhaps by this commit, if an earlier answer was lost.
        TooManyUnpublishedError : nothing was done.
        RefusedError : the name belongs to another table now.
        StorageDeniedError : the catalog refused, and nothing was done.
        StorageUnavailableError : it is not known whether it was done.
        """

    def report(self, published: int) -> Ratified:
        """Say that all commits up to a version are published: the catalog then forgets their files. Raises as
        :meth:`ratify`.
        """


def managed_storage(location: Location) -> Storage:
    """The storage of a table that a catalog named."""
    catalog = location.catalog
    if not isinstance(catalog, ManagingCatalog):
        raise UnsupportedFeatureError(
            f"{catalog.name if catalog else 'it'} is a table of a catalog that this format does not ask",
            features=("tables of a catalog",),
            table=location.storage.uri,
            next_step="open the table by its path if the catalog leaves commits to the files",
        )
    return RatifiedStorage(location.storage, catalog)


@dataclass(frozen=True, slots=True)
class _Answered:
    """The handle that other processes get. They read what this one has been answered, and need no token for it."""

    name: str
    identity: str
    answer: Ratified

    def optimizer(self) -> str:
        return ""

    def ratified(self) -> Ratified:
        return self.answer

    def ratify(self, commit: StagedCommit) -> Ratified:  # noqa: ARG002
        raise self._elsewhere()

    def report(self, published: int) -> Ratified:  # noqa: ARG002
        raise self._elsewhere()

    def _elsewhere(self) -> RefusedError:
        return RefusedError(f"{self.name} is committed to by the process that opened it", next_step="report this bug")


class RatifiedStorage(Storage):
    """The files of a table, with a log as its catalog says: as its last answer says, which stays true for the versions
    that it names. To create a commit is to have it ratified.

    verified : versions whose published copies this process has written, or compared.
    """

    def __init__(self, storage: Storage, catalog: ManagingCatalog) -> None:
        super().__init__(storage.uri, storage.options)
        self.catalog = catalog
        self.verified: set[int] = set()
        self._answer: Ratified | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        handle = _Answered(self.catalog.name, self.catalog.identity, self.known)
        return (RatifiedStorage, (Storage(self.uri, self.options), handle))

    def latest(self) -> int:
        """The newest version now, or as probed: one request or none. Raises as ``ManagingCatalog.ratified``."""
        return (self.known if is_as_probed() else self._ask()).latest

    @property
    def known(self) -> Ratified:
        """The last answer."""
        return self._answer or self._ask()

    @property
    def stamp(self) -> str:
        """The stamp of every version, see ``tables.table.Probe``."""
        from hashlib import sha256

        return sha256(self.catalog.identity.encode()).hexdigest()[:8]

    def _ask(self) -> Ratified:
        return self.answered(self.catalog.ratified())

    def answered(self, found: Ratified) -> Ratified:
        """Take an answer of the catalog for what is true now. Raises DamagedTableError."""
        self._answer = found
        versions = sorted(found.unpublished)
        if versions and versions != list(range(versions[0], found.latest + 1)):
            raise self._damaged(f"the catalog names commits {versions}, but {found.latest} as the newest version")
        for each in found.unpublished.values():
            if each.name in {"", ".", ".."} or "/" in each.name or "\\" in each.name:
                raise self._damaged(f"the catalog names a commit {each.name!r}, which is not the name of a file")
        return found

    def _damaged(self, what: str) -> DamagedTableError:
        return DamagedTableError(
            f"{self.catalog.name}: {what}", table=self.uri, next_step="ask the operator of the catalog"
        )

    def _stored(self, path: str) -> tuple[str, UnpublishedCommit | None]:
        """Where the bytes of a path are, and the unpublished commit that they must be."""
        if (match := _COMMIT.fullmatch(path)) is None:
            return path, None
        now, version = self.known, int(match[1])
        if version > now.latest:
            raise FileNotFoundError(path)
        commit = now.unpublished.get(version)
        return (path, None) if commit is None else (STAGED + commit.name, commit)

    def list(self, prefix: str = "", *, after: str | None = None, staged: bool = False) -> list[FileInfo]:
        if prefix != _LOG:
            return super().list(prefix, after=after, staged=staged)
        now = self.known
        found = {info.path: info for info in super().list(prefix, after=after, staged=staged)}
        found = {path: info for path, info in found.items() if not path.startswith(STAGED)}
        above = {path for path in found if (match := _ABOUT.fullmatch(path)) and int(match[1]) > now.latest}
        if above and not now.latest:
            if self._ask().latest:  # its first commit was published in this moment
                return self.list(prefix, after=after, staged=staged)
            raise RefusedError(
                f"{self.catalog.name} has ratified no commit, but the log has later ones",
                table=self.uri,
                next_step="the table was registered with its history: commit to it once through the catalog",
            )
        for version, commit in now.unpublished.items():
            path = f"{_LOG}/{version:020d}.json"
            if after is None or path > after:
                found[path] = FileInfo(path, commit.size, commit.modified)
        return [found[path] for path in sorted(found.keys() - above)]

    def staged(self) -> Iterator[tuple[int, str]]:
        """Version and path of each file in ``_staged_commits``, whatever became of it."""
        for info in Storage.list(self, STAGED.rstrip("/")):
            if info.path[len(STAGED) :][:20].isdecimal():
                yield int(info.path[len(STAGED) :][:20]), info.path

    def get(self, path: str) -> bytes:
        place, commit = self._stored(path)
        if commit is None:
            return super().get(place)
        with self._must_exist(place):
            data = super().get(place)
        self._check(place, len(data), commit)
        return data

    def get_range(self, path: str, start: int, length: int) -> bytes:
        return super().get_range(self._whole(path), start, length)

    def head(self, path: str) -> FileInfo:
        place, commit = self._stored(path)
        return super().head(place) if commit is None else FileInfo(path, commit.size, commit.modified)

    def open_input(self, path: str, size: int | None = None) -> pa.NativeFile:
        return super().open_input(self._whole(path), size)

    def _whole(self, path: str) -> str:
        """Where the bytes of a path are. All of them are there: who reads a part could not tell."""
        place, commit = self._stored(path)
        if commit is not None:
            with self._must_exist(place):
                size = super().head(place).size
            self._check(place, size, commit)
        return place

    @contextmanager
    def _must_exist(self, place: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise self._damaged(f"{place} does not exist, but the catalog names it as a ratified commit") from None

    def _check(self, place: str, size: int, commit: UnpublishedCommit) -> None:
        if size != commit.size:
            raise self._damaged(f"{place} has {size} bytes, not the {commit.size} that were ratified")

    # -- writing -----------------------------------------------------------------------------------------------

    def create(self, path: str, data: bytes, *, staging: str | None = None) -> None:
        """See ``Storage.create``. A commit is ratified, or raises as ``ratification.ratify``."""
        if (match := _COMMIT.fullmatch(path)) is None:
            super().create(path, data, staging=staging)
            return
        from dv_maintenance.tables.delta.commit.ratification import ratify

        ratify(self, int(match[1]), data)

    def prove_put_if_absent(self, folder: str, *, anyhow: bool = False) -> None:
        """Nothing depends on it: the catalog decides which of two commits wins."""

    def rehearsed(self) -> Rehearsal:
        return _Rehearsed(self)


class _Rehearsed(Rehearsal, RatifiedStorage):
    """Storage for dry runs of such a table: it asks the catalog, and has nothing ratified."""

    def __init__(self, storage: RatifiedStorage) -> None:
        RatifiedStorage.__init__(self, storage, storage.catalog)
        self.forget()
        self._answer = storage._answer  # noqa: SLF001 - of the same kind
