"""What event logs have shown so far, and its form as JSON, which makes reading them incremental."""

from __future__ import annotations

from dataclasses import astuple, dataclass, field
from typing import Any, Final

import orjson

from dv_maintenance.errors import UsageError
from dv_maintenance.maintenance.reads.counts import HourlyReads
from dv_maintenance.maintenance.reads.model import Reads
from dv_maintenance.maintenance.reads.spark_queries import Application, PlannedScan
from dv_maintenance.storage import Storage, absolute_uri

_FORMAT: Final = 1
# A state names its format among so many first bytes.
_START: Final = 32


@dataclass(slots=True)
class LogFile:
    """How far a file was read.

    size : stored size in bytes when everything in it had been read.
    offset : in the decompressed file.
    events, damaged : lines that are events, and lines that are not, or whose event is damaged.
    problem : a sentence, if not everything in it could be read.
    """

    size: int = 0
    offset: int = 0
    events: int = 0
    damaged: int = 0
    problem: str | None = None


@dataclass(slots=True)
class Log:
    """The log of one application, and its files by name."""

    application: Application = field(default_factory=Application)
    files: dict[str, LogFile] = field(default_factory=dict)


@dataclass(slots=True)
class SparkReads:
    """What the event logs show.

    since, until : times of the first and the last event, epoch milliseconds; ``None`` if there is no event.
    tables : reads by the table's absolute URI.
    state_problem : why the state was not used, a sentence.
    logs : by the path of the file, or of the folder of a rolling log.
    """

    since: int | None = None
    until: int | None = None
    tables: dict[str, HourlyReads] = field(default_factory=dict)
    state_problem: str | None = None
    logs: dict[str, Log] = field(default_factory=dict)

    @property
    def problems(self) -> list[str]:
        """Sentences on what could not be read."""
        files = (file.problem for log in self.logs.values() for file in log.files.values())
        return [problem for problem in (self.state_problem, *files) if problem is not None]

    def unlocated(self) -> dict[str, int]:
        """Scans whose plan does not show the table's location, by the name that it shows."""
        found: dict[str, int] = {}
        for log in self.logs.values():
            for name, scans in log.application.unlocated.items():
                found[name] = found.get(name, 0) + scans
        return found

    def of(self, table: str) -> Reads | None:
        """The reads of a table, by path or URI; ``None`` if the logs have none: its readers may log elsewhere."""
        found = self.tables.get(absolute_uri(table))
        if found is None or self.since is None or self.until is None:
            return None
        return found.reads(self.since, self.until)


def load(storage: Storage, name: str, logs: str) -> SparkReads:
    """What was known before. A state that is damaged, or that belongs to other logs, is not used.

    logs : URI of the logs.

    Raises
    ------
    UsageError : the file holds something else, which a new state would replace.
    """
    try:
        text = storage.get(name)
    except FileNotFoundError:
        return SparkReads()
    if len(text) > _START and b'"format"' not in text[:_START]:
        raise UsageError(
            f"{storage.uri_of(name)} is not a state of reads", next_step="name another file, which need not exist"
        )
    try:
        data = orjson.loads(text)
    except ValueError:
        data = None
    try:
        if data["format"] != _FORMAT or data["logs_of"] != logs:
            raise ValueError
        return SparkReads(
            _time(data["since"]),
            _time(data["until"]),
            {str(uri): HourlyReads.from_json(reads) for uri, reads in data["tables"].items()},
            logs={str(key): _log_from_json(log) for key, log in data["logs"].items()},
        )
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError):
        problem = f"the state {storage.uri_of(name)} is damaged or belongs to other logs: every log was read again"
        return SparkReads(state_problem=problem)


def _time(value: Any) -> int | None:
    return None if value is None else int(value)


def dump(found: SparkReads, logs: str) -> bytes:
    """The state as JSON. ``logs``: URI of the logs."""
    return orjson.dumps(
        {
            "format": _FORMAT,
            "logs_of": logs,
            "since": found.since,
            "until": found.until,
            "tables": {uri: reads.to_json() for uri, reads in sorted(found.tables.items())},
            "logs": {key: _log_to_json(log) for key, log in sorted(found.logs.items())},
        },
        option=orjson.OPT_INDENT_2,
    )


def _log_to_json(log: Log) -> dict[str, Any]:
    running = log.application
    return {
        "files": {name: list(astuple(file)) for name, file in log.files.items()},
        "own": running.own,
        "first": running.first,
        "last": running.last,
        "queries": [[query, *started] for query, started in running.queries.items()],
        "statements": sorted(running.statements),
        "unlocated": running.unlocated,
        "scans": [[metric, *astuple(scan)] for metric, scan in running.scans.items()],
    }


def _file(size: Any, offset: Any, events: Any, damaged: Any, problem: Any) -> LogFile:
    return LogFile(int(size), int(offset), int(events), int(damaged), None if problem is None else str(problem))


def _log_from_json(data: Any) -> Log:
    scans = {
        int(metric): PlannedScan(int(query), tuple(places), None if names is None else tuple(names), bool(chosen))
        for metric, query, places, names, chosen in data["scans"]
    }
    queries = {int(query): (int(time), int(root)) for query, time, root in data["queries"]}
    statements = {(int(query), str(place)) for query, place in data["statements"]}
    unlocated = {str(name): int(scans) for name, scans in data["unlocated"].items()}
    first, last = _time(data["first"]), _time(data["last"])
    running = Application(bool(data["own"]), queries, scans, statements, first, last, unlocated)
    return Log(running, {str(name): _file(*file) for name, file in data["files"].items()})
