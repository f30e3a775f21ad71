"""How often tables are read, from the event logs of Spark 3.5 to 4.1 in a folder or prefix.

Single files (``app-1``, ``app-1.inprogress``) and rolling logs (``eventlog_v2_app-1/events_1_app-1``) are read, plain
or compressed with zstd, lz4 or snappy. A state makes it incremental: it holds the reads so far, and how far each file
was read. It also keeps the reads of logs that Spark's history server has deleted.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dv_maintenance.errors import StorageError
from dv_maintenance.maintenance.reads.counts import HourlyReads
from dv_maintenance.maintenance.reads.spark_codecs import CODECS, DamagedLogError, lines
from dv_maintenance.maintenance.reads.spark_queries import Application
from dv_maintenance.maintenance.reads.state import Log, SparkReads, dump, load
from dv_maintenance.storage import FileInfo, Storage, absolute_uri

__all__ = ["SparkReads", "spark_reads"]

_DAY: Final = 86_400_000
# No event is older than Spark.
_EARLIEST: Final = 1_262_304_000_000
_ROLLING: Final = re.compile(r"(?:.*/)?eventlog_v2_[^/]+/events_(\d+)_[^/]+")
_AN_EVENT: Final = b'{"Event":"'
# A file without any event in its first lines is something else.
_SNIFFED: Final = 100


def spark_reads(
    logs: str, options: Mapping[str, str] | None = None, *, state: str | None = None, now: int | None = None
) -> SparkReads:
    """Read what is new in a folder or prefix of event logs.

    logs : path or URI.
    options : of the storage, for ``logs`` and ``state``.
    state : path or URI of a JSON file that this function keeps; without one every log is read from its beginning.
    now : epoch milliseconds; the clock's unless given.

    Raises
    ------
    StorageError : the folder can't be listed, or the state can't be read or written.
    """
    storage = Storage(logs, options)
    folder, name = absolute_uri(state).rsplit("/", 1) if state else ("", "")
    kept = Storage(folder, options) if state else None
    found = SparkReads() if kept is None else load(kept, name, storage.uri)
    before = dump(found, storage.uri)
    reader = _Reader(storage, found, round(time.time() * 1000) if now is None else now)
    present: dict[str, list[tuple[int, FileInfo]]] = {}
    for info in storage.list():
        place = _place(info.path)
        if place is not None and info.size >= 0 and storage.uri_of(info.path) != (kept and kept.uri_of(name)):
            present.setdefault(place[0], []).append((place[1], info))
    for key, files in present.items():
        reader.read(found.logs.setdefault(key, Log()), sorted(files, key=lambda each: (each[0], each[1].path)))
    # The history server has deleted the others.
    found.logs = {key: log for key, log in found.logs.items() if key in present}
    if found.until is not None:
        found.tables = {uri: reads.recent(found.until) for uri, reads in found.tables.items()}
    if kept is not None and (data := dump(found, storage.uri)) != before:
        kept.put(name, data, staging=f".{name}.new")
    return found


def _place(path: str) -> tuple[str, int] | None:
    """The log that a file belongs to, and its place in it; ``None`` for other files."""
    if rolling := _ROLLING.fullmatch(path):
        return path.rsplit("/", 1)[0], int(rolling[1])
    if "eventlog_v2_" in path or path.rsplit("/", 1)[-1].startswith((".", "_")):
        return None
    return path.removesuffix(".inprogress"), 0


@dataclass(frozen=True, slots=True)
class _Reader:
    """Adds what is new in logs to what was found. ``now``: epoch milliseconds."""

    storage: Storage
    found: SparkReads
    now: int

    def read(self, log: Log, files: list[tuple[int, FileInfo]]) -> None:
        for _, info in files:
            name = info.path.rsplit("/", 1)[-1].removesuffix(".inprogress")
            # What the history server made of older files, which were read before.
            if name.endswith(".compact") and log.files and name not in log.files:
                continue
            size, offset = log.files.get(name, (0, 0))
            if info.size < size:
                self.found.problems.append(f"{info.path} is shorter than before: its new events are not counted")
            elif info.size > size:
                log.files[name] = info.size, self._read_file(log.application, info, offset)

    def _read_file(self, application: Application, info: FileInfo, offset: int) -> int:
        """How far the file was read."""
        problems = self.found.problems
        suffix = info.path.removesuffix(".inprogress").removesuffix(".compact").rsplit(".", 1)[-1]
        if suffix == "lzf":
            problems.append(f"{info.path} is compressed with lzf, which is not supported: its events are not counted")
            return 0
        codec = suffix if suffix in CODECS else ""
        events = damaged = 0
        # A damaged time must not stretch what was observed.
        between = (_EARLIEST, self.now + _DAY)
        try:
            with self.storage.open_input(info.path) as file:
                for text, end in lines(file, codec, offset):
                    try:
                        if text is None or not text.startswith(_AN_EVENT):
                            raise ValueError("not an event")
                        events += 1
                        for scan in application.read(text, between):
                            self.found.tables.setdefault(scan.location, HourlyReads()).add(scan)
                    except ValueError:
                        damaged += 1
                    offset = end
                    if not events and damaged == _SNIFFED:
                        break
        except FileNotFoundError:
            pass  # renamed when its application ended: found under its new name the next time
        except StorageError as error:
            problems.append(f"{info.path} can't be read: {error.message}")
        except DamagedLogError:
            # The file of a running application has no end.
            if self.now - info.modified > _DAY and not info.path.endswith(".inprogress"):
                problems.append(f"{info.path} is damaged or incomplete after {offset:,} bytes of events")
        if damaged and not events:
            problems.append(f"{info.path} is not an event log of Spark")
        elif damaged:
            problems.append(f"{info.path} has {damaged} damaged event{'s' * (damaged > 1)}, not counted")
        self._observed(application)
        return offset

    def _observed(self, application: Application) -> None:
        known = (application.first, application.last, self.found.since, self.found.until)
        times = [time for time in known if time is not None]
        if times:
            self.found.since, self.found.until = min(times), max(times)
