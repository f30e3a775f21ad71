"""The registry of table formats, with everything that code outside a format's folder needs to know about the format.

The formats of this package are loaded on first use, from ``tables.NAME``. Another package adds its own with
:func:`register`, or with an entry point in the group ``dv_maintenance.table_formats`` that names a
:class:`TableFormat`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol

from dv_maintenance.errors import UnsupportedFeatureError, UsageError

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.table import Table

CATALOGS: Final = "DVM_CATALOGS"
"""The environment variable that names the file with the catalogs."""
_ENTRY_POINTS: Final = "dv_maintenance.table_formats"
_HERE: Final = ("delta", "lance", "paimon", "iceberg")


class CatalogTable(Protocol):
    """The handle of one table in a catalog. A format whose commits a catalog decides asks for more in a protocol of its
    own, such as a pointer to swap.
    """

    @property
    def name(self) -> str:
        """As users write it, with the catalog: ``lake.sales.orders``."""


@dataclass(frozen=True, slots=True)
class NamedTable:
    """The handle of a table whose catalog has a name for it, and nothing to do with its commits. If the catalog makes
    the table's versions itself, the storage has the option ``catalog.commits``, so that nothing is written.

    Attributes
    ----------
    name
        as users write it, with the catalog.
    identity
        what tells it from another table that has the name later, "" if the catalog says nothing.
    """

    name: str
    identity: str = ""


@dataclass(frozen=True, slots=True)
class Location:
    """Where a table is.

    Attributes
    ----------
    storage
        its root folder or prefix.
    catalog
        the handle of the table in the catalog that named it; ``None`` if it was named by its path.
    """

    storage: Storage
    catalog: CatalogTable | None = None


def at_root(name: str) -> Callable[[Location], Table]:
    """An opener for ``TableFormat.open``. It calls the class ``name``, such as ``package.module:DeltaTable``, with the
    storage at the table's root. The module is imported when the first table is opened.

    The opener raises UnsupportedFeatureError for a table of a catalog that decides the table's commits: a commit by
    files alone would be lost, or destroy the table.
    """
    module, _, cls = name.partition(":")

    def opened(location: Location) -> Table:
        if location.catalog is not None and not isinstance(location.catalog, NamedTable):
            raise UnsupportedFeatureError(
                f"{location.catalog.name} is a table of a catalog, which this format does not ask",
                features=("tables of a catalog",),
                table=location.storage.uri,
                next_step="open the table by its path if the catalog leaves commits to the files",
            )
        table: Table = getattr(import_module(module), cls)(location.storage)
        return table

    return opened


def at_location(name: str) -> Callable[[Location], Table]:
    """As :func:`at_root`, for a format that knows what to do with catalogs: it gets the whole location."""
    module, _, function = name.partition(":")

    def opened(location: Location) -> Table:
        table: Table = getattr(import_module(module), function)(location)
        return table

    return opened


@dataclass(frozen=True, slots=True)
class TableFormat:
    """A table format.

    Attributes
    ----------
    name
        as users write it, such as ``delta``.
    title
        as its makers write it, such as ``Delta``.
    marker
        folder right below a table's root that identifies the format.
    marker_file
        what the name of a file in that folder must match; ``None``: the folder itself is enough.
    marker_of_file
        what the name of a file that stands for its table must match; ``None`` if no file does.
    open
        returns the table at a location; costs nothing before the table is used.
    locate
        for formats that ask catalogs, the function that finds the location of ``CATALOG.NAMESPACE.TABLE``, given
        the storage options, such as ``package.module:locate``.
    listed
        for these formats, the function that finds what is in ``CATALOG.NAMESPACE``; see ``dv_maintenance.catalogs``.
    dv_codecs
        name of each codec of its deletion vectors, as ``DvRef.codec`` gives it -> the function that reads one, such
        as ``package.module:read``, imported at the first deletion vector.
    partitions
        whether its tables can be partitioned.
    symlink_manifests
        whether other readers find its files through symlink manifests, see ``SymlinkManifestTable``.
    dv_checksums
        whether its deletion vectors carry checksums, so that reading one detects damage.
    kind
        the asset kind for which Dagster's UI has an icon.
    commits
        folder in which a commit is created by put-if-absent, "" for the table's root. `dvm doctor` tests a store
        there.
    commits_also
        other folders in which a commit creates files.
    compression
        whether its tables leave a choice of compression, see ``Policy.compression``.
    size_property
        table property that says how large a data file should be, ``None`` if there is none.
    retention
        how long its tables keep unused files by default, milliseconds; ``None`` if that is unknown.
    extra
        extra of this package that installs what the format needs, ``None`` if it needs nothing.
    """

    name: str
    title: str
    marker: str
    open: Callable[[Location], Table]
    marker_file: str | None = None
    marker_of_file: str | None = None
    locate: str | None = None
    listed: str | None = None
    dv_codecs: Mapping[str, str] = field(default_factory=dict)
    partitions: bool = True
    symlink_manifests: bool = False
    dv_checksums: bool = True
    kind: str | None = None
    commits: str = ""
    commits_also: tuple[str, ...] = ()
    compression: bool = False
    size_property: str | None = None
    retention: int | None = None
    extra: str | None = None

    def marked_by(self, names: Iterable[str]) -> bool:
        """Whether files of these names in the marker folder make it a table of this format."""
        return any(self.marker_file is None or re.fullmatch(self.marker_file, name) for name in names)


_known: dict[str, TableFormat] = {}
_complete = False


def register(format: TableFormat) -> None:
    """Add a format, or replace the one of the same name."""
    formats()
    _known[format.name] = format


def formats() -> tuple[TableFormat, ...]:
    """Every known format, those of this package first."""
    return tuple(each_format())


def each_format() -> Iterator[TableFormat]:
    """As :func:`formats`, one by one. Entry points come last, since looking them up takes as long as opening a small
    table.
    """
    global _complete  # noqa: PLW0603 - loaded once per process
    if not _known:
        _known.update({name: import_module(f"dv_maintenance.tables.{name}").FORMAT for name in _HERE})
    yield from tuple(_known.values())
    if not _complete:
        from importlib.metadata import entry_points

        found = {each.name: each for each in (entry.load() for entry in entry_points(group=_ENTRY_POINTS))}
        added = {name: each for name, each in found.items() if name not in _known}
        _known.update(added)
        _complete = True
        yield from added.values()


def format_called(name: str, table: str | None = None) -> TableFormat:
    """The format of that name. ``table``: for the error. Raises UsageError."""
    found = known_format(name)
    if found is None:
        choice = ", ".join(_known)
        raise UsageError(f"unknown table format {name!r}", table=table, next_step=f"use one of {choice}")
    return found


def known_format(name: str | None) -> TableFormat | None:
    """The format of that name; ``None`` if the name is unknown or missing."""
    return next((each for each in each_format() if each.name == name), None)


def title_of(name: str) -> str:
    """The format as its makers write it, for people; the name itself if the format is unknown."""
    found = known_format(name)
    return name if found is None else found.title


def a_table(name: str, *, first: bool = False) -> str:
    """A table of this format, in words. ``first``: at the beginning of a sentence.

    >>> a_table("iceberg")
    'an Iceberg table'
    """
    title = title_of(name)
    return f"{'A' if first else 'a'}{'n' if title[:1] in 'AEIOU' else ''} {title} table"


def in_catalog(place: str, storage_options: Mapping[str, str] | None = None) -> Table | None:
    """As :func:`named`, for a place that may be a path or URI. A file or folder of that name comes first."""
    unquoted = re.sub(r"`(?:[^`]|``)*`", "", place)
    if "/" in unquoted:
        return None
    if ":" not in unquoted and (not os.environ.get(CATALOGS) or os.path.exists(place)):
        return None
    found = named(place, storage_options)
    return None if found is None else found[0].open(found[1])


def named(
    name: str, storage_options: Mapping[str, str] | None = None, catalogs: Mapping[str, Any] | None = None
) -> tuple[TableFormat, Location] | None:
    """Format and location of the table ``FORMAT:CATALOG.NAMESPACE.TABLE``, or ``CATALOG.….TABLE`` of a catalog that
    tells formats, see ``dv_maintenance.catalogs``; ``None`` if there is no such format or catalog. Raises what the
    format's ``locate`` or the catalog's ``located`` raises.

    catalogs : settings of catalogs besides those that the environment names.
    """
    if ":" not in re.sub(r"`(?:[^`]|``)*`", "", name):
        found = import_module("dv_maintenance.catalogs").located(name, storage_options, catalogs)
        return None if found is None else (format_called(found[0], name), found[1])
    prefix, _, rest = name.partition(":")
    known = known_format(prefix)
    if known is None or known.locate is None:
        return None
    module, _, function = known.locate.partition(":")
    return known, getattr(import_module(module), function)(rest, storage_options)


def quoted(parts: Iterable[str]) -> str:
    """The name of these parts.

    >>> quoted(["main", "a.b"])
    'main.`a.b`'
    """
    return ".".join(
        each if re.fullmatch(r"[^`.:/\s]+", each) else "`" + each.replace("`", "``") + "`" for each in parts
    )


def detect_on_disk(place: str) -> TableFormat | None:
    """The format of the table in a folder on local disk, by its folders' names alone: for thousands of tables at a
    time. ``None``: there is none, it can't be listed, or the place is elsewhere.
    """
    if "://" in place or place.startswith("file:"):
        from dv_maintenance.storage import Storage

        storage = Storage(place)
        if not storage.is_local:
            return None
        place = storage.local("")
    place = os.path.expanduser(place)
    for each in each_format():
        marker = os.path.join(place, each.marker)
        try:
            if os.path.isdir(marker) and (each.marker_file is None or each.marked_by(os.listdir(marker))):
                return each
        except OSError:
            continue
    return None


def detect(storage: Storage, folder: str = "", children: Iterable[str] | None = None) -> TableFormat | None:
    """The format of the table in ``folder`` of a storage, ``None`` if the folder holds no table.

    ``children``: names of its subfolders, if the caller has listed them already. Raises StorageError.
    """
    own_name = "" if folder or children is not None else storage.uri.rpartition("/")[2]
    for each in each_format():
        if each.marker_of_file and re.fullmatch(each.marker_of_file, own_name):
            return each
        if children is not None and each.marker not in children:
            continue
        if children is not None and each.marker_file is None:
            return each
        names, _ = storage.first_names(f"{folder}/{each.marker}" if folder else each.marker)
        if each.marked_by(names):
            return each
    return None
