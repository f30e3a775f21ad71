"""Which versions and files of a Lance table nothing needs any more: decisions without side effects.

**Versions.** A version goes when it has been *superseded* for longer than the retention: whoever opened it as the
newest one may have done so until its successor was committed. Lance's own cleanup goes by the age of the version
itself, so it takes the version that a quiet table was read at for a month as soon as somebody writes. The newest
version never goes, nor does one that a tag names or a branch came off, nor those that the table's
``lance.auto_cleanup.retain_versions`` keeps.

**Files.** Known by the names that Lance gives them (see :func:`known_file`); anything else stays. A file goes

1. at once, if a version named it and none that is kept does;
2. if no version ever named it, when all that was written under the same key is older than a week, or than the
   retention if that is longer: it may be of a writer that failed, or of one that has not committed yet. That holds for
   files of every kind; Lance's own cleanup leaves deletion files and transactions that are younger than the oldest
   version it keeps, so an old tag hides them for ever.

Files are told by *keys*, kind and base name, and not by where a manifest places them. Their names are random, so a key
stands for one file, and what a branch or a clone names through a base path is safe however that path is spelled
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
    "YOUNG",
    "Committed",
    "KnownFile",
    "find_expired",
    "keys_of",
    "known_file",
    "pinned",
    "superseded_before",
]

CURRENT: Final = "in the current version"
RECENT: Final = "in a version that was the newest one inside the retention"
RETAINED: Final = "in one of the newest versions, which the table's config retains"
TAGGED: Final = "in a tagged version"
BRANCHED: Final = "in another branch, or in the version that one came off"
DETACHED: Final = "in a detached version"
CLONED: Final = "in a clone that is protected"
YOUNG: Final = "in no version, but young: a writer may be about to commit it"
FOREIGN: Final = "not named as Lance names its files"

INDICES: Final = "_indices"
FOLDERS: Final = (VERSIONS, TRANSACTIONS, DELETIONS, INDICES, DATA)
"""Where a table's own files are. Whatever else lies in its folder (branches, tags, other tools' files) is not looked
at, but for what killed writers left staged in REFS."""
REFS: Final = "_refs"


def pinned(version: int) -> str:
    return f"in version {version}, which is pinned"


_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_DELETION: Final = re.compile(r"[0-9]+-[0-9]+-[0-9]+\.(arrow|bin)")
_TEMPORARY: Final = ".tmp"
_MANIFEST: Final = re.compile(rf"{VERSIONS}/d?[0-9]+\.manifest")
_REF: Final = re.compile(rf"{REFS}/(tags|branches)/[^/]+\.json")
_HINT: Final = f"{VERSIONS}/latest_version_hint.json"


@dataclass(frozen=True, slots=True)
class KnownFile:
    """``key``: see the module. ``kind``: of ``ExpiredFile``. ``named``: whether the name alone says that Lance wrote
    it; otherwise it must be in a version.
    """

    key: str
    kind: str
    named: bool = True


@dataclass(frozen=True, slots=True)
class Committed:
    """When a version was committed, epoch milliseconds. ``written``: what storage says of its manifest; ``timestamp``:
    what the manifest says, ``None`` where it was not read.
    """

    version: int
    written: int
    timestamp: int | None = None

    def before(self, cutoff: int) -> bool | None:
        """Whether that was before the cutoff; ``None``: only the manifest can tell. A manifest is written when it is
        committed or, where a table was copied, later.
        """
        if self.written < cutoff:
            return True
        if self.timestamp is None:
            return None
        # Where it does not say when, only its age in storage counts.
        return 0 < self.timestamp < cutoff


def superseded_before(version: Committed, successor: Committed | None, cutoff: int) -> bool | None:
    """Whether a version had a successor before the cutoff; ``None``: only the manifests can tell.

    By the version's own time as well, which cannot be later: a successor whose writer's clock is wrong expires nothing.
    """
    if successor is None:
        return False
    answers = (successor.before(cutoff), version.before(cutoff))
    if False in answers:
        return False
    return None if None in answers else True


def keys_of(fragments: Iterable[Fragment], indices: Iterable[Index], *, elsewhere: bool = False) -> set[str]:
    """Keys of what a manifest names, but for its transaction. Those of a data file's blobs are its own. ``elsewhere``:
    only what it names through a base path, so what may be another table's.
    """
    keys = {f"{INDICES}/{index.uuid}" for index in indices if not elsewhere or index.base_id is not None}
    for fragment in fragments:
        keys |= {_data_key(file.path) for file in fragment.files if not elsewhere or file.base_id is not None}
        deletion = fragment.deletion
        if deletion is not None and not (elsewhere and deletion.base_id is None):
            keys.add(f"{DELETIONS}/{deletion.name}")
    return keys


def known_file(path: str) -> KnownFile | None:
    """What a listed file is, ``None`` if it is nothing of Lance's. Manifests are not asked for here: each belongs to
    its version.

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
    if folder == VERSIONS and name.startswith(_TEMPORARY):
        return KnownFile(path, "other")
    if folder == DELETIONS and _DELETION.fullmatch(name):
        return KnownFile(path, "dv")
    if folder == TRANSACTIONS:
        return KnownFile(path, "transaction", named=name.endswith(".txn"))
    return None


def find_expired(
    listed: Sequence[FileInfo],
    needed: Mapping[str, str],
    past: AbstractSet[str],
    manifests: Mapping[str, str | None],
    young: int,
) -> tuple[list[ExpiredFile], Counter[str], bool]:
    """The files that may be deleted, manifests and transactions first; how many stay for which reason; and whether
    there are ``young`` ones that stay only because ``past`` does not have them.

    ``needed``: why a key must stay. ``past``: keys that an expired version named. ``manifests``: by path, why each must
    stay, ``None`` where it is that of an expired version. ``young``: epoch milliseconds; what no version named and is
    not older than that stays.
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
