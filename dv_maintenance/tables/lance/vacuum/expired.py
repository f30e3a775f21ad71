"""Which versions and files of a Lance table have expired: decisions without side effects.

**Versions.** A version expires when it has been *superseded* for longer than the retention: until its successor was
committed, a reader may have opened it as the newest version. Lance's own cleanup uses the age of the version itself. If
readers used one version of a quiet table for a month, it deletes that version as soon as the next one is committed. The
newest version never expires, nor does a version with a tag, a version from which a branch was created, or one that the
table's ``lance.auto_cleanup.retain_versions`` retains.

**Files.** Only files with names that Lance gives (see :func:`known_file`) can expire. A file expires

1. at once, if an expired version names it and no retained version does;
2. later, if no version ever named it: once everything written under the same key is older than a week, or than the
   retention if that is longer. Its writer may have failed, or may not have committed yet. This rule covers files of
   every kind, also for manifests that writers stage as ``N.manifest-UUID``. A catalog may point to such a file until
   somebody gives it its final name, so it is kept unless that name, or a newer version, exists.
   Lance's own cleanup keeps deletion files and transactions that are younger than the oldest version it keeps, so an
   old tag preserves orphans forever.

A file is identified by its *key* (kind and base name), not by its path in a manifest. Names are random, so a key
identifies one file. A file that a branch or a clone names through a base path is kept, however that path is spelled
(another mount, a symbolic link, another scheme of the same storage).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dv_maintenance.storage import FileInfo, staged_for
from dv_maintenance.tables.lance.layout import DATA, DELETIONS
from dv_maintenance.tables.lance.log.transaction import TRANSACTIONS
from dv_maintenance.tables.lance.log.versions import VERSIONS
from dv_maintenance.tables.model import ExpiredFile

if TYPE_CHECKING:
    from dv_maintenance.tables.lance.log.manifest import Fragment, Index

__all__ = [
    "BRANCHED",
    "CLONED",
    "CURRENT",
    "DETACHED",
    "FOLDERS",
    "FOREIGN",
    "INDICES",
    "RECENT",
    "REFS",
    "RETAINED",
    "TAGGED",
    "UNFINISHED",
    "YOUNG",
    "Committed",
    "KnownFile",
    "find_expired",
    "keys_of",
    "known_file",
    "pinned",
    "staged_manifest",
    "superseded_before",
]

CURRENT: Final = "in the current version"
RECENT: Final = "in a version that was the newest one inside the retention"
RETAINED: Final = "in one of the newest versions, which the table's config retains"
TAGGED: Final = "in a tagged version"
BRANCHED: Final = "in another branch, or in a version from which one was created"
DETACHED: Final = "in a detached version"
CLONED: Final = "in a clone that is protected"
YOUNG: Final = "in no version, but young: a writer may be about to commit it"
UNFINISHED: Final = "the manifest of a version that may yet be committed"
FOREIGN: Final = "not named as Lance names its files"

INDICES: Final = "_indices"
FOLDERS: Final = (VERSIONS, TRANSACTIONS, DELETIONS, INDICES, DATA)
"""Folders of a table's own files. Nothing else in the table's folder is listed (branches, tags, files of other tools),
except the staged files that killed writers left in REFS."""
REFS: Final = "_refs"


def pinned(version: int) -> str:
    return f"in version {version}, which is pinned"


_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_DELETION: Final = re.compile(r"[0-9]+-[0-9]+-[0-9]+\.(arrow|bin)")
_TEMPORARY: Final = (".tmp", ".dvm-probe-")
_STAGED: Final = re.compile(rf"(d?[0-9]+\.manifest)-{_UUID.pattern}")
_MANIFEST: Final = re.compile(rf"{VERSIONS}/d?[0-9]+\.manifest")
_REF: Final = re.compile(rf"{REFS}/(tags|branches)/[^/]+\.json")
_HINT: Final = f"{VERSIONS}/latest_version_hint.json"


@dataclass(frozen=True, slots=True)
class KnownFile:
    """A file with a name that Lance gives.

    key : its identity, see the module.
    kind : as in ``ExpiredFile``.
    named : whether the name alone proves that Lance wrote the file; otherwise a version must name it.
    """

    key: str
    kind: str
    named: bool = True


@dataclass(frozen=True, slots=True)
class Committed:
    """When a version was committed, epoch milliseconds.

    written : modification time of its manifest in storage.
    timestamp : time in the manifest; ``None`` if it was not read.
    """

    version: int
    written: int
    timestamp: int | None = None

    def before(self, cutoff: int) -> bool | None:
        """Whether the commit was before the cutoff; ``None`` if only the manifest can decide. A manifest is written at
        the commit or, in a copied table, later.
        """
        if self.written < cutoff:
            return True
        if self.timestamp is None:
            return None
        # Without a time in the manifest only its age in storage counts.
        return 0 < self.timestamp < cutoff


def superseded_before(version: Committed, successor: Committed | None, cutoff: int) -> bool | None:
    """Whether a version had a successor before the cutoff; ``None`` if only the manifests can decide.

    The version's own time must be before the cutoff too. It cannot be later than the successor's, so a successor from a
    writer with a wrong clock expires nothing.
    """
    if successor is None:
        return False
    answers = (successor.before(cutoff), version.before(cutoff))
    if False in answers:
        return False
    return None if None in answers else True


def keys_of(fragments: Iterable[Fragment], indices: Iterable[Index], *, elsewhere: bool = False) -> set[str]:
    """Keys of the files that a manifest names, except its transaction. The blobs of a data file share its key.

    elsewhere : only files named through a base path, which may belong to another table.
    """
    keys = {f"{INDICES}/{index.uuid}" for index in indices if not elsewhere or index.base_id is not None}
    for fragment in fragments:
        keys |= {_data_key(file.path) for file in fragment.files if not elsewhere or file.base_id is not None}
        deletion = fragment.deletion
        if deletion is not None and not (elsewhere and deletion.base_id is None):
            keys.add(f"{DELETIONS}/{deletion.name}")
    return keys


def known_file(path: str) -> KnownFile | None:
    """Identify a listed file, ``None`` if its name is not one that Lance gives. Manifests are handled by version, not
    here.

    >>> known_file("data/0a1b.lance"), known_file("data/0a1b/01.blob").key, known_file("data/0a1b.txt").named
    (KnownFile(key='data/0a1b', kind='data', named=True), 'data/0a1b', False)
    """
    whole = staged_for(path)
    if whole is not None:
        made = known_file(whole)
        if made is None:
            named = whole == _HINT or any(pattern.fullmatch(whole) for pattern in (_MANIFEST, _REF))
        else:
            named = made.named
        return KnownFile(path, "other") if named else None
    folder, *between, name = path.split("/")
    if folder == INDICES and between:
        return KnownFile(f"{INDICES}/{between[0]}", "index") if _UUID.fullmatch(between[0]) else None
    if folder == DATA:
        if name.startswith(_TEMPORARY):
            return KnownFile(path, "other") if len(between) < 2 else None
        if name.endswith(".blob") and len(between) == 1:
            return KnownFile(f"{DATA}/{between[0]}", "data")
        return KnownFile(_data_key(path), "data", named=not between and name.endswith(".lance"))
    if between:
        return None
    if name.startswith(_TEMPORARY) and folder in {VERSIONS, DELETIONS, TRANSACTIONS}:
        return KnownFile(path, "other")
    if folder == VERSIONS and _STAGED.fullmatch(name):
        return KnownFile(path, "other")
    if folder == DELETIONS and _DELETION.fullmatch(name):
        return KnownFile(path, "dv")
    if folder == TRANSACTIONS:
        return KnownFile(path, "transaction", named=name.endswith(".txn"))
    return None


def staged_manifest(path: str) -> str | None:
    """The path that a staged manifest gets when its commit succeeds; ``None`` for any other file.

    >>> staged_manifest("_versions/7.manifest-0a1b2c3d-0000-4000-8000-000000000000")
    '_versions/7.manifest'
    """
    folder, _, name = path.rpartition("/")
    found = _STAGED.fullmatch(name) if folder == VERSIONS else None
    return f"{folder}/{found[1]}" if found else None


def find_expired(
    listed: Sequence[FileInfo],
    needed: Mapping[str, str],
    past: AbstractSet[str],
    manifests: Mapping[str, str | None],
    young: int,
) -> tuple[list[ExpiredFile], Counter[str], bool]:
    """The files that may be deleted, manifests and transactions first; how many are kept for each reason; and whether
    any file is kept only because ``past`` lacks its key.

    needed : key -> why it must be kept.
    past : keys that an expired version named.
    manifests : path -> why the manifest must be kept; ``None`` if its version has expired.
    young : epoch milliseconds; a file that no version names is kept unless it is older.
    """
    kept: Counter[str] = Counter()
    candidates: list[tuple[FileInfo, KnownFile]] = []
    doubtful = False
    expired: list[ExpiredFile] = []
    newest: dict[str, int] = {}
    for info in listed:
        if info.path in manifests:
            reason = manifests[info.path]
            if reason is None:
                expired.append(ExpiredFile(info.path, "manifest", info.size, info.modified))
            else:
                kept[reason] += 1
            continue
        known = known_file(info.path)
        if known is not None:
            newest[known.key] = max(newest.get(known.key, info.modified), info.modified)
        if known is not None and known.key in needed:
            kept[needed[known.key]] += 1
        elif known is None or not (known.named or known.key in past):
            doubtful |= known is not None
            kept[FOREIGN] += info.path != _HINT
        else:
            candidates.append((info, known))
    for info, known in candidates:
        if known.key in past or newest[known.key] < young:
            expired.append(ExpiredFile(info.path, known.kind, info.size, info.modified))
        else:
            doubtful = True
            kept[YOUNG] += 1
    order = {"manifest": 0, "transaction": 1}
    expired.sort(key=lambda file: (order.get(file.kind, 2), file.path))
    return expired, +kept, doubtful


def _data_key(path: str) -> str:
    return f"{DATA}/{path.rpartition('/')[2].removesuffix('.lance')}"
