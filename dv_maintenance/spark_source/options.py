"""The settings of ``.option(...)``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final, Self
from zoneinfo import ZoneInfo

from dv_maintenance.errors import UsageError

_STORAGE: Final = "storage."
_KNOWN: Final = ("path", "versionAsOf", "timestampAsOf", "timeZone", "columns", "splitBytes")
_SPLIT_BYTES: Final = 128 << 20
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_NAME: Final = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^`,]+?))\s*(?:,|$)")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of one read.

    timestamp : epoch milliseconds.
    columns : ``None`` for all of them.
    split_bytes : bytes that one Spark task reads.
    storage_options : without their prefix; never shown.
    time_zone : as given.
    """

    path: str
    version: int | None = None
    timestamp: int | None = None
    columns: tuple[str, ...] | None = None
    split_bytes: int = _SPLIT_BYTES
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    time_zone: str | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """From Spark's options, whose names may be in any case.

        Raises
        ------
        UsageError : an option is unknown, or its value is invalid.
        """
        given = {name.lower(): value for name, value in options.items()}
        storage = {name[len(_STORAGE) :]: given.pop(name) for name in list(given) if name.startswith(_STORAGE)}
        unknown = sorted(set(given) - {name.lower() for name in _KNOWN})
        if unknown:
            raise UsageError(
                f"unknown option {unknown[0]!r}", next_step=f"choose from {', '.join(_KNOWN)}, {_STORAGE}<option>"
            )
        if not given.get("path", "").strip():
            raise UsageError("no path is given", next_step="name the table in load(path)")
        version, timestamp = given.get("versionasof"), given.get("timestampasof")
        if version is not None and timestamp is not None:
            raise UsageError("versionAsOf and timestampAsOf are given together", next_step="give one of them")
        columns = given.get("columns")
        return cls(
            path=given["path"],
            version=None if version is None else _version(version),
            timestamp=None if timestamp is None else _timestamp(timestamp, _zone(given.get("timezone", "UTC"))),
            columns=None if columns is None else _columns(columns),
            split_bytes=_bytes(given["splitbytes"]) if "splitbytes" in given else _SPLIT_BYTES,
            storage_options=storage,
            time_zone=given.get("timezone"),
        )


def _version(text: str) -> int:
    if not re.fullmatch(r"\d{1,18}", text.strip()):
        raise UsageError(f"versionAsOf {text!r} is not a version", next_step="give 0 or more")
    return int(text)


def _timestamp(text: str, zone: tzinfo) -> int:
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise UsageError(
            f"timestampAsOf {text!r} is not a time",
            next_step="write it as 2026-01-31, 2026-01-31 12:00:00 or with a zone",
        ) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=zone)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def _zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise UsageError(f"timeZone {name!r} is unknown", next_step="give a name such as Europe/Berlin") from None


def _columns(text: str) -> tuple[str, ...]:
    """``a, `b, c` `` as names; within quotes a backtick is doubled."""
    if not text.strip():
        raise UsageError("columns names no column", next_step="leave the option out to read all of them")
    names: list[str] = []
    position = 0
    while position < len(text):
        match = _NAME.match(text, position)
        if match is None:
            raise UsageError(f"columns {text!r} is not a list of names", next_step="write it as a, b, `with, comma`")
        names.append(match[2] if match[1] is None else match[1].replace("``", "`"))
        position = match.end()
    return tuple(names)


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d{1,15})\s*([kmg]?)b?", text.strip().lower())
    if match is None or not int(match[1]):
        raise UsageError(f"splitBytes {text!r} is not a size", next_step="write it as 134217728 or 128m")
    return int(match[1]) * _UNITS[match[2]]
