"""Names of files: paths, URIs, and what logs call them.

A *path* here is either relative to the table's root, decoded (``part one/a.parquet``), or an absolute, percent-encoded
URI (``file:///data/t/part%20one/a.parquet``); ``://`` distinguishes the two. Names in a Delta log are percent-encoded,
and not paths: they have a type of their own, :class:`RawName`, since a path that is decoded twice is another file.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote

from dv_maintenance.errors import UsageError, redacted

# Characters that Hadoop's Path.toUri leaves alone; everything else in a local path is percent-encoded in our URIs.
_SAFE: Final = "/!$&'()*+,;=:@-._~"
_SCHEMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "abfss"}
# Names in a log that differ from their path: escaped or absolute ones, and those with dots or empty parts to resolve.
NOT_PLAIN: Final = r"[%:]|^/|//|(^|/)\.{1,2}(/|$)"
# The name under which obstore stages bytes on local disk.
_STAGED = re.compile(r"(.+)#[0-9]+", re.DOTALL)


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One stored object: ``path`` as given to the call, ``size`` in bytes, ``modified`` in epoch milliseconds."""

    path: str
    size: int
    modified: int


class RawName:
    """A name as a log spells it: a percent-encoded URI, absolute or relative to the table. It is not a string, so that
    neither mypy nor the interpreter accepts a name as a path, or a path as a name.
    """

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return f"RawName({self.text!r})"


def absolute_uri(place: str) -> str:
    """The absolute, percent-encoded URI (no trailing slash) of a local path or URI.

    Raises
    ------
    UsageError : if ``place`` is empty, or not UTF-8.
    """
    if not place.strip():
        raise UsageError("the table's path is empty", next_step="give a directory or a URI such as s3://bucket/table")
    try:
        place.encode()
    except UnicodeEncodeError:
        # A byte of the command line, or of a folder's name, that no URI in a log can spell.
        raise UsageError(
            f"the path {place!a} is not UTF-8", next_step="rename the folder, or give another path"
        ) from None
    if place.startswith("file:"):
        # Hadoop writes file:/x, others file:///x: one spelling.
        return "file://" + quote(os.path.normpath(unquote("/" + place[5:].lstrip("/"))), safe=_SAFE)
    if re.match(r"^[A-Za-z][A-Za-z0-9+.-]+://", place):
        scheme, rest = place.split("://", 1)
        return f"{_SCHEMES.get(scheme.lower(), scheme.lower())}://{quote(rest, safe=_SAFE + '%')}".rstrip("/")
    return "file://" + quote(absolute_path(os.path.expanduser(place)), safe=_SAFE)


def absolute_path(path: str) -> str:
    """The absolute local path. Raises UsageError: it is relative to a folder that no longer exists."""
    try:
        return os.path.abspath(path)
    except FileNotFoundError:
        step = "change to another folder, or give an absolute path"
        raise UsageError(f"{path} is relative, and the working folder no longer exists", next_step=step) from None


def plain_uri(text: str) -> str:
    """The absolute, percent-encoded URI of a location in the spelling of Hadoop's ``Path.toString``, which encodes
    nothing: a ``%`` is a ``%``.
    """
    return absolute_uri(text.replace("%", "%25") if "://" in text or text.startswith("file:") else text)


def staged_for(path: str) -> str | None:
    """The path that the file at ``path`` was staged for on local disk by obstore, in this or another writer; ``None``
    if its name is not that of a staged file. An old staged file was left by a writer that was killed.

    >>> staged_for("index/index-1#2"), staged_for("index/index-1")
    ('index/index-1', None)
    """
    match = _STAGED.fullmatch(path)
    return None if match is None else match[1]


def stamp_of(info: FileInfo) -> str:
    """What tells a file from another one of the same name, in eight characters: its size and its time."""
    from hashlib import sha256  # a start of the command line costs less without

    return sha256(f"{info.size}-{info.modified}".encode()).hexdigest()[:8]


def hadoop_checksum(path: str) -> str:
    """Where Hadoop's local file system keeps the checksum of a file. It refuses to read a file that does not match.

    >>> hadoop_checksum("day=1/a.parquet")
    'day=1/.a.parquet.crc'
    """
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}.{name}.crc"


class Place:
    """A table's root, ``uri``, and conversions between the names of the files below it."""

    def __init__(self, place: str) -> None:
        _refuse_secrets(place)
        self.uri = absolute_uri(place)
        self.is_local = self.uri.startswith("file://")
        self._root = unquote(self.uri[7:]) if self.is_local else self.uri

    def path_of(self, name: RawName) -> str:
        """The path of a name in a table log: percent-decoded if relative, one spelling of the URI if absolute.

        A URI below this table's root becomes relative, so that a file has one path, however a log names it.
        """
        raw = name.text
        if re.match(r"^[A-Za-z][A-Za-z0-9+.-]+:/", raw):
            uri = absolute_uri(raw)
        elif raw.startswith("/"):
            uri = "file://" + quote(unquote(raw), safe=_SAFE)
        else:
            return unquote(raw)
        return self._relative(uri)

    def path_of_uri(self, uri: str) -> str:
        """The path of an absolute URI: relative if it is below this table's root.

        Raises
        ------
        ValueError : ``uri`` is not an absolute URI.
        """
        if "://" not in uri:
            raise ValueError(f"{uri!r} is not an absolute URI")
        return self._relative(absolute_uri(uri))

    def _relative(self, uri: str) -> str:
        prefix = self.uri + "/"
        return unquote(uri[len(prefix) :]) if uri.startswith(prefix) else uri

    def uri_of(self, path: str) -> str:
        """The absolute, percent-encoded URI of a path."""
        return path if "://" in path else f"{self.uri}/{quote(path, safe=_SAFE)}"

    def local(self, path: str) -> str:
        """The path on local disk. Only for ``is_local`` places. Raises FileNotFoundError: no disk has such a name."""
        found = unquote(path[7:]) if path.startswith("file://") else os.path.join(self._root, path)
        if "\0" in found:
            raise FileNotFoundError(path)
        return found

    def is_folder(self, path: str) -> bool:
        """Whether there is a folder of this name on local disk, where a file should be."""
        try:
            return self.on_disk(path) and os.path.isdir(self.local(path))
        except FileNotFoundError:
            return False

    def is_dangling(self, path: str) -> bool:
        """Whether the name is, on local disk, a link to nothing. Listings leave it out, and nobody can create it."""
        return self.on_disk(path) and os.path.islink(self.local(path)) and not os.path.exists(self.local(path))

    def on_disk(self, path: str) -> bool:
        """Whether a path is on local disk."""
        return path.startswith("file://") if "://" in path else self.is_local


def _refuse_secrets(place: str) -> None:
    """A URI is printed, logged and stored in metadata: secrets belong in options. Raises UsageError."""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://[^/]*:[^/]*@", place):
        problem = "the table's URI contains a password"
    elif re.match(r"https?://.*\?", place, re.IGNORECASE):
        problem = "the table's URI contains a query, such as a token"
    else:
        return
    raise UsageError(problem, table=redacted(place), next_step="remove it, and pass it as a storage option")
