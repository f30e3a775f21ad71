"""How often tables are read, from the event logs of Spark 3.5 to 4.1 in a folder or prefix.

Single files (``app-1``, ``app-1.inprogress``) and rolling logs (``eventlog_v2_app-1/events_1_app-1``) are read, plain
or compressed with zstd, lz4 or snappy. A state makes it incremental: it holds the reads so far, and how far each file
was read. It also keeps the reads of logs that Spark's history server has deleted.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dv_maintenance.errors import StorageError
from dv_maintenance.maintenance.reads.counts import HourlyReads
from dv_maintenance.maintenance.reads.spark_codecs import CODECS, DamagedLogError, lines
from dv_maintenance.maintenance.reads.spark_queries import Application
from dv_maintenance.maintenance.reads.state import Log, LogFile, SparkReads, dump, load
from dv_maintenance.storage import FileInfo, Storage, absolute_uri
from dv_maintenance.tables.nested import check_stored_outside_tables
from dv_maintenance.units import DAY

# No event is older than Spark.
_EARLIEST: Final = 1_262_304_000_000
_ROLLING: Final = re.compile(r"(?:.*/)?eventlog_v2_[^/]+/events_(\d+)_[^/]+")
_AN_EVENT: Final = b'{"Event":"'
# A file without any event in its first lines is something else.
_SNIFFED: Final = 100


def spark_reads(
    logs: str,
    options: Mapping[str, str] | None = None,
    *,
    state: str | None = None,
    known: SparkReads | None = None,
    seconds: float = math.inf,
    now: int | None = None,
) -> SparkReads:
    """Read what is new in a folder or prefix of event logs.

    logs : path or URI.
    options : of the storage, for ``logs`` and ``state``.
    state : path or URI of a JSON file that this function keeps; without one every log is read from its beginning.
    known : what the last call in this process returned, which is continued; the state is then only written.
    seconds : stop after this time; the next call continues there.
    now : epoch milliseconds; the clock's unless given.

    Raises
    ------
    UsageError : the state is in a table, or a file of something else.
    StorageError : the folder can't be listed, or the state can't be read or written.
    """
    storage = Storage(logs, options)
    folder, name = absolute_uri(state).rsplit("/", 1) if state else ("", "")
    kept = Storage(folder, options) if state else None
    found = known or (SparkReads() if kept is None else load(kept, name, storage.uri))
    before = b"" if kept is None else dump(found, storage.uri)
    now = round(time.time() * 1000) if now is None else now
    reader = _Reader(storage, found, now, time.monotonic() + seconds)
    present: dict[str, list[tuple[int, FileInfo]]] = {}
    for info in storage.list():
        place = _place(info.path)
        if place is not None and info.size >= 0 and storage.uri_of(info.path) != (kept and kept.uri_of(name)):
            present.setdefault(place[0], []).append((place[1], info))
    # The history server has deleted the others.
    found.logs = {key: found.logs.get(key) or Log() for key in present}
    for key, files in present.items():
        reader.read(found.logs[key], sorted(files, key=lambda each: (each[0], each[1].path)))
    if found.until is not None:
        found.tables = {uri: reads.recent(found.until) for uri, reads in found.tables.items()}
    if kept is not None and (data := dump(found, storage.uri)) != before:
        check_stored_outside_tables(kept, name)
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
    """Adds what is new in logs to what was found.

    now : epoch milliseconds.
    deadline : by the clock of ``time.monotonic``.
    """

    storage: Storage
    found: SparkReads
    now: int
    deadline: float

    def read(self, log: Log, files: list[tuple[int, FileInfo]]) -> None:
        for _, info in files:
            name = info.path.rsplit("/", 1)[-1].removesuffix(".inprogress")
            # What the history server made of older files, which were read before.
            if name.endswith(".compact") and log.files and name not in log.files:
                continue
            file = log.files.get(name) or LogFile()
            if info.size < file.size:
                file.problem = f"{info.path} is shorter than before: its new events are not counted"
            elif info.size > file.size:
                file.problem = None
                if self._read_file(log.application, info, file):
                    file.size = info.size
                self._observed(log.application)
            log.files[name] = file

    def _read_file(self, application: Application, info: FileInfo, file: LogFile) -> bool:
        """Whether there was time to read all that is new."""
        suffix = info.path.removesuffix(".inprogress").removesuffix(".compact").rsplit(".", 1)[-1]
        if suffix == "lzf":
            file.problem = f"{info.path} is compressed with lzf, which is not supported: its events are not counted"
            return True
        # A damaged time must not stretch what was observed.
        between = (_EARLIEST, self.now + DAY)
        try:
            with self.storage.open_input(info.path) as source:
                for text, end in lines(source, suffix if suffix in CODECS else "", file.offset):
                    if time.monotonic() > self.deadline:
                        file.problem = f"{info.path} has not been read to its end yet, so its reads are undercounted"
                        return False
                    try:
                        if text is None or not text.startswith(_AN_EVENT):
                            raise ValueError("not an event")
                        file.events += 1
                        for scan in application.read(text, between):
                            self.found.tables.setdefault(scan.location, HourlyReads()).add(scan)
                    except ValueError:
                        file.damaged += 1
                    file.offset = end
                    if not file.events and file.damaged == _SNIFFED:
                        break
        except FileNotFoundError:
            return False  # renamed when its application ended: found under its new name the next time
        except StorageError as error:
            file.problem = f"{info.path} can't be read: {error.message}"
            return False
        except DamagedLogError:
            # The file of a running application has no end.
            if self.now - info.modified > DAY and not info.path.endswith(".inprogress"):
                file.problem = f"{info.path} is damaged or incomplete after {file.offset:,} bytes of events"
        if file.damaged and not file.events:
            file.problem = f"{info.path} is not a Spark event log"
        elif file.damaged:
            events = f"{file.damaged} damaged event{'s' * (file.damaged > 1)}"
            file.problem = f"{file.problem}; {events}" if file.problem else f"{info.path} has {events}, not counted"
        return True

    def _observed(self, application: Application) -> None:
        known = (application.first, application.last, self.found.since, self.found.until)
        times = [time for time in known if time is not None]
        if times:
            self.found.since, self.found.until = min(times), max(times)
