"""What keeps files of a Lance table: its versions and tags, branches and clones.

A version expires when it has been *superseded* for longer than the retention: until its successor was committed, a
reader may have opened it as the newest version. Lance's own cleanup uses the age of the version itself. If readers used
one version of a quiet table for a month, it deletes that version as soon as the next one is committed. The newest
version never expires, nor does a version with a tag, a version from which a branch was created, or one that the table's
``lance.auto_cleanup.retain_versions`` retains.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dv_maintenance.errors import DamagedTableError, DvMaintenanceError, RefusedError, UnsupportedFeatureError
from dv_maintenance.storage import Storage
from dv_maintenance.tables.lance.layout import DATA
from dv_maintenance.tables.lance.log.refs import branches, tags
from dv_maintenance.tables.lance.log.versions import (
    VERSIONS,
    VersionFile,
    detached_names,
    versions_among,
)

CURRENT: Final = "in the current version"
RECENT: Final = "in a version that was the newest one inside the retention"
AMONG_THE_NEWEST: Final = "in one of the newest versions, which the table's config keeps"
TAGGED: Final = "in a tagged version"
BRANCHED: Final = "in another branch, or in a version from which one was created"
DETACHED: Final = "in a detached version"
CLONED: Final = "in a clone that is protected"
TREE: Final = "tree"


@dataclass(frozen=True, slots=True)
class Place:
    """Another table that may need files of this table.

    storage : its root.
    reason : why the files that it names are kept.
    versions : paths of its manifests.
    """

    storage: Storage
    reason: str
    versions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Holders:
    """What keeps files of a table, at the time of one listing.

    versions : manifests of the history, oldest first.
    detached : paths of manifests of detached versions.
    kept : version -> why it must be kept, whatever its age.
    places : branches and clones.
    """

    versions: tuple[VersionFile, ...]
    detached: tuple[str, ...]
    kept: Mapping[int, str]
    places: tuple[Place, ...]


def read_holders(storage: Storage, root: Storage, branch: str | None, clones: Sequence[Storage]) -> Holders:
    """List what keeps files of the table at ``storage``.

    root : the root of the table if ``storage`` is its ``branch``, otherwise ``storage`` itself.

    Raises
    ------
    RefusedError : a branch or a clone cannot be read.
    DamagedTableError, UnsupportedFeatureError : a tag or a branch cannot be parsed.
    """
    names = storage.names(VERSIONS)
    kept = {tag.version: TAGGED for tag in tags(root).values() if tag.branch == branch}
    known = branches(root)
    folders = {each.path for each in known.values()} | set(_branch_folders(root))
    kept |= {each.parent_version: BRANCHED for each in known.values() if each.parent == branch}
    family = [root, *(Storage(root.uri_of(path), root.options) for path in sorted(folders))]
    places = [_place(each, BRANCHED) for each in family if each.uri != storage.uri]
    for clone in clones:
        parts = [clone, *(Storage(clone.uri_of(path), clone.options) for path in sorted(_branch_folders(clone)))]
        places += [_place(part, CLONED) for part in parts]
    return Holders(
        versions=tuple(versions_among(storage, names)),
        detached=tuple(f"{VERSIONS}/{name}" for name in detached_names(names)),
        kept=kept,
        places=tuple(places),
    )


def _place(storage: Storage, reason: str) -> Place:
    """Raises RefusedError, DamagedTableError."""
    try:
        names = storage.names(VERSIONS)
        paths = [file.path for file in versions_among(storage, names)]
    except DvMaintenanceError as error:
        raise unreadable(Place(storage, reason, ()), error) from error
    return Place(storage, reason, (*paths, *(f"{VERSIONS}/{name}" for name in detached_names(names))))


def unreadable(place: Place, error: DvMaintenanceError) -> DvMaintenanceError:
    """The error to raise if a place cannot be read. Damage and unknown features are raised as they are."""
    if isinstance(error, DamagedTableError | UnsupportedFeatureError):
        return error
    what = "protected clone" if place.reason == CLONED else "branch"
    return RefusedError(
        f"the {what} {place.storage.uri} cannot be read, so the files that it needs are unknown: {error.message}",
        table=place.storage.uri,
        next_step=f"check its path and the permissions; if the {what} was deleted, stop naming it",
    )


def _branch_folders(storage: Storage) -> Iterator[str]:
    """Branches by their folders: a branch that is being created has no ref file yet."""
    todo = [TREE]
    while todo:
        folder = todo.pop()
        below = storage.folders(folder)
        is_branch = VERSIONS in below
        if is_branch:
            yield folder
        # Next to the versions of a branch, `data` holds its data files. Its folders are blobs, not branches.
        todo += (f"{folder}/{name}" for name in below if not name.startswith("_") and not (is_branch and name == DATA))
