"""The files of a Lance table: what each is by its name, and the key that identifies it.

A file is identified by its *key* (kind and base name), not by its path in a manifest. Names are random, so a key
identifies one file. A file that a branch or a clone names through a base path is kept, however that path is spelled
(another mount, a symbolic link, another scheme of the same storage). The key of a manifest is its path.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from dv_maintenance.storage import staged_for
from dv_maintenance.tables.lance.layout import DATA, DELETIONS
from dv_maintenance.tables.lance.log.transaction import TRANSACTIONS
from dv_maintenance.tables.lance.log.versions import VERSIONS
from dv_maintenance.tables.lance.vacuum.blobs import BLOBS
from dv_maintenance.tables.reach.unneeded import KnownFile

if TYPE_CHECKING:
    from dv_maintenance.tables.lance.log.manifest import Fragment, Index

INDICES: Final = "_indices"
FOLDERS: Final = (VERSIONS, TRANSACTIONS, DELETIONS, INDICES, DATA, BLOBS)
"""Folders of a table's own files. Nothing else in the table's folder is listed (branches, tags, files of other tools),
except the staged files that killed writers left in REFS."""
REFS: Final = "_refs"
HINT: Final = f"{VERSIONS}/latest_version_hint.json"

_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_DELETION: Final = re.compile(r"[0-9]+-[0-9]+-[0-9]+\.(arrow|bin)")
_TEMPORARY: Final = (".tmp", ".dvm-probe-")
_STAGED: Final = re.compile(rf"(d?[0-9]+\.manifest)-{_UUID.pattern}")
_MANIFEST: Final = re.compile(rf"{VERSIONS}/d?[0-9]+\.manifest")
_REF: Final = re.compile(rf"{REFS}/(tags|branches)/[^/]+\.json")
# No manifest names it, so it has no key.
_FOREIGN: Final = KnownFile("", None)


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


def known_file(path: str) -> KnownFile:
    """Identify a listed file.

    >>> known_file("data/0a1b.lance"), known_file("data/0a1b/01.blob").key, known_file("data/0a1b.txt").sure
    (KnownFile(key='data/0a1b', kind='data', sure=True), 'data/0a1b', False)
    """
    whole = staged_for(path)
    if whole is not None:
        made = known_file(whole)
        named = whole == HINT or _REF.fullmatch(whole) or made.kind == "manifest" or (made.kind and made.sure)
        return KnownFile(path, "other") if named else _FOREIGN
    folder, *between, name = path.split("/")
    if folder == INDICES and between:
        return KnownFile(f"{INDICES}/{between[0]}", "index") if _UUID.fullmatch(between[0]) else _FOREIGN
    if folder == DATA:
        if name.startswith(_TEMPORARY):
            return KnownFile(path, "other") if len(between) < 2 else _FOREIGN
        if name.endswith(".blob") and len(between) == 1:
            return KnownFile(f"{DATA}/{between[0]}", "data")
        return KnownFile(_data_key(path), "data", sure=not between and name.endswith(".lance"))
    if between:
        return _FOREIGN
    if name.startswith(_TEMPORARY) and folder in {VERSIONS, DELETIONS, TRANSACTIONS}:
        return KnownFile(path, "other")
    if _MANIFEST.fullmatch(path):
        return KnownFile(path, "manifest", sure=False)
    if folder == VERSIONS and _STAGED.fullmatch(name):
        return KnownFile(path, "other")
    if folder == BLOBS and name.endswith(".blob"):
        return KnownFile(path, "data", sure=_UUID.fullmatch(name.removesuffix(".blob")) is not None)
    if folder == DELETIONS and _DELETION.fullmatch(name):
        return KnownFile(path, "dv")
    if folder == TRANSACTIONS:
        return KnownFile(path, "transaction", sure=name.endswith(".txn"))
    return _FOREIGN


def staged_manifest(path: str) -> str | None:
    """The path that a staged manifest gets when its commit succeeds; ``None`` for any other file.

    >>> staged_manifest("_versions/7.manifest-0a1b2c3d-0000-4000-8000-000000000000")
    '_versions/7.manifest'
    """
    folder, _, name = path.rpartition("/")
    found = _STAGED.fullmatch(name) if folder == VERSIONS else None
    return f"{folder}/{found[1]}" if found else None


def _data_key(path: str) -> str:
    return f"{DATA}/{path.rpartition('/')[2].removesuffix('.lance')}"
