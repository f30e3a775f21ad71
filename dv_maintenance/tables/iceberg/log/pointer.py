"""Which metadata file is a table's newest one.

A catalog knows. In a folder, only tables of Hadoop's catalog can be followed: their metadata files are numbered without
gaps, and ``version-hint.text`` has the number of a recent one. Other catalogs number theirs too, but a file that lost
a race has the same number as the one that won.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Final

from dv_maintenance.errors import DamagedTableError, RefusedError
from dv_maintenance.storage import Storage
from dv_maintenance.tables.iceberg.layout import METADATA, Layout
from dv_maintenance.tables.not_found import not_found

HINT: Final = "metadata/version-hint.text"
SPELLINGS: Final = ("v{}.metadata.json", "v{}.gz.metadata.json", "v{}.metadata.json.gz")
"""Names of a metadata file in Hadoop's catalog, by its number."""

_MAX_HINT: Final = 64
_HADOOP: Final = re.compile(r"v(\d{1,9})(?:\.gz)?\.metadata\.json(?:\.gz)?")
_OTHERS: Final = re.compile(
    r"(\d{1,9})-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?:\.gz)?\.metadata\.json(?:\.gz)?", re.IGNORECASE
)


def newest_metadata(layout: Layout) -> str:
    """The storage path of the newest metadata file.

    Costs, in a folder, one read and a request for each possible name of the next file; one listing if the hint is
    missing.

    Raises
    ------
    TableNotFoundError : there is no metadata file.
    RefusedError : several files may be the newest one, and only the table's catalog knows which.
    DamagedTableError : the hint names a file that does not exist, and there is no other.
    """
    if layout.catalog is not None:
        return layout.path(layout.catalog.newest())
    if layout.file is not None:
        return layout.file
    hint = _hint(layout.storage)
    found = None if hint is None else _numbered(layout.storage, hint)
    if hint is None or found is None:
        return _listed(layout)
    while (following := _numbered(layout.storage, hint + 1)) is not None:
        hint, found = hint + 1, following
    return found


def hadoop_number(path: str) -> int | None:
    """The number of a metadata file of Hadoop's catalog, ``None`` for others."""
    match = _HADOOP.fullmatch(path.rpartition("/")[2])
    return None if match is None else int(match[1])


def _hint(storage: Storage) -> int | None:
    try:
        text = storage.get_range(HINT, 0, _MAX_HINT).decode("ascii", "replace").strip()
    except FileNotFoundError:
        return None
    return int(text) if re.fullmatch(r"\d{1,9}", text) else None


def _numbered(storage: Storage, number: int) -> str | None:
    paths = (f"{METADATA}/{each.format(number)}" for each in SPELLINGS)
    return next((path for path in paths if storage.exists(path)), None)


def _listed(layout: Layout) -> str:
    files = {each.path: each for each in layout.storage.list(METADATA) if each.size}
    names = {path: path.rpartition("/")[2] for path in files if path.count("/") == 1}
    hadoop = {int(match[1]): path for path, name in names.items() if (match := _HADOOP.fullmatch(name))}
    if hadoop:
        return hadoop[max(hadoop)]
    others: dict[int, list[str]] = defaultdict(list)
    for path, name in names.items():
        if match := _OTHERS.fullmatch(name):
            others[int(match[1])].append(path)
    if not others:
        if layout.storage.exists(HINT):
            raise DamagedTableError(
                f"{HINT} is there, but no metadata file",
                table=layout.uri,
                next_step="check the path; restore the metadata files from a backup if they were deleted",
            )
        raise not_found(layout.storage, format="iceberg")
    newest = sorted(others[max(others)])
    if len(newest) > 1:
        raise RefusedError(
            f"{' and '.join(newest)} may both be the newest version: only the table's catalog knows",
            table=layout.uri,
            next_step="name the table by its catalog (iceberg:CATALOG.NAMESPACE.TABLE), or give the metadata file",
        )
    return newest[0]
