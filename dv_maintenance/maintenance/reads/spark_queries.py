"""The table scans of one Spark application, from the events of its log.

A scan is counted when its files were listed (``FileSourceScanExec.sendDriverMetrics``), not when a plan names it. A
plan names scans that never run: those that adaptive execution replans, reuses or drops, and those of a cached result.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any, Final

import orjson

from dv_maintenance.errors import DvMaintenanceError
from dv_maintenance.storage import plain_uri
from dv_maintenance.tables.model import partition_name

_START: Final = b"SparkListenerSQLExecutionStart"
_UPDATE: Final = b"SparkListenerSQLAdaptiveExecutionUpdate"
_METRICS: Final = b"SparkListenerDriverAccumUpdates"
_END: Final = b"SparkListenerSQLExecutionEnd"
_APPLICATION: Final = b"SparkListenerApplicationStart"
# Spark writes the class of an event first. Most lines are about tasks, and are not parsed.
_EVENT: Final = re.compile(
    rb'\{"Event":"(?:[a-z.]+\.)?(' + b"|".join((_START, _UPDATE, _METRICS, _END, _APPLICATION)) + rb')"'
)
# The metric that a scan reports once, with its files, when it runs.
_FILES: Final = "number of files read"
# What the engine here names its sessions and tags its jobs.
_OWN_SESSION: Final = "dv-maintenance"
_OWN_JOB: Final = re.compile(r"(?:^|-)dv-maintenance-[0-9a-f]{8}-[0-9a-f]{4}-")
# StreamExecution.getBatchDescriptionString
_STREAM: Final = re.compile(r"(?:^|\n)runId = [0-9a-f-]+\nbatch = ")
# A statement searches the table, then reads again the files that it changes: one read. In a stream, the new files.
_CHOSEN: Final = "TahoeBatchFileIndex("
# These read the files of a few commits, which is not a read of the table.
_CHANGES: Final = re.compile(r"Cdc|CDC|TahoeRemove|TahoeChange")
# A scan by DataSource V2: Paimon, Lance, ``dv_delta``. BatchScanExec shows the name of a table, or of the source.
_NO_LOCATION: Final = "BatchScan "
_NAMES: Final = 1_000
_PENDING: Final = 10_000
_MOST_PARTITIONS: Final = 1_000

# Old Hadoop accepted keys in a URI. They are no part of the table's name.
_KEYS: Final = re.compile(r"^(\w+://)[^/@]*:[^/@]*@")

_VALUE: Final = r"[^,()\[\]#=<>:\"'\n]+"
_COLUMN: Final = r"([^#()\[\],]+)#\d+L?"
_EQUAL: Final = re.compile(rf"\({_COLUMN} = ({_VALUE})\)")
_IN: Final = re.compile(rf"{_COLUMN} IN \(({_VALUE}(?:,{_VALUE})*)\)")
_IN_SET: Final = re.compile(rf"{_COLUMN} INSET ({_VALUE}(?:, {_VALUE})*)")


@dataclass(frozen=True, slots=True)
class Scan:
    """A read of a table.

    time : when its query started, epoch milliseconds.
    location : the table's absolute URI.
    partitions : names of the partitions that the filters select; ``None`` for the whole table. A name may leave out
        columns.
    """

    time: int
    location: str
    partitions: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class PlannedScan:
    """A scan that may run.

    query : its execution.
    locations, partitions : as in ``Scan``.
    chosen : of files that a statement chose.
    """

    query: int
    locations: tuple[str, ...]
    partitions: tuple[str, ...] | None
    chosen: bool


@dataclass(slots=True)
class Application:
    """What has to be kept of an application between two events of its log.

    own : it is maintenance of this package.
    queries : when each running query started, epoch milliseconds, and the query that it is a part of, or itself.
    scans : of running queries, by the accumulator that their number of files will be reported with.
    statements : running queries with the locations that they have read by chosen files.
    first, last : times of the first and the last event that has one, epoch milliseconds; ``None`` before.
    unlocated : planned scans of sources whose plan does not show the table's location, by the name that it shows.
    """

    own: bool = False
    queries: dict[int, tuple[int, int]] = field(default_factory=dict)
    scans: dict[int, PlannedScan] = field(default_factory=dict)
    statements: set[tuple[int, str]] = field(default_factory=set)
    first: int | None = None
    last: int | None = None
    unlocated: dict[str, int] = field(default_factory=dict)

    def read(self, line: bytes, between: tuple[int, int]) -> Iterator[Scan]:
        """The scans that an event says ran.

            between : plausible times, epoch milliseconds.

        Raises
        ------
        ValueError : the event is damaged; the application is as before.
        """
        found = _EVENT.match(line)
        if found is None:
            return
        try:
            event = orjson.loads(line)
            kind = found[1]
            if kind == _APPLICATION:
                self._seen(_time(event["Timestamp"], between))
                self.own = event["App Name"] == _OWN_SESSION
            elif kind == _START:
                self._start(event, between)
            elif kind == _UPDATE:
                self._plan(_int(event["executionId"]), event["sparkPlanInfo"], stream=False)
            elif kind == _END:
                self._end(_int(event["executionId"]), _time(event["time"], between))
            else:
                yield from self._ran(event["accumUpdates"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError("not a Spark event") from error

    def _seen(self, time: int) -> None:
        self.first = time if self.first is None else min(self.first, time)
        self.last = time if self.last is None else max(self.last, time)

    def _start(self, event: Mapping[str, Any], between: tuple[int, int]) -> None:
        query, time = _int(event["executionId"]), _time(event["time"], between)
        if self.own or any(_OWN_JOB.search(tag) for tag in event.get("jobTags") or ()):
            return
        root = event.get("rootExecutionId")
        started = time, query if root is None else _int(root)
        self._plan(query, event["sparkPlanInfo"], stream=_STREAM.search(event["description"]) is not None, new=started)

    def _plan(self, query: int, root: Mapping[str, Any], *, stream: bool, new: tuple[int, int] | None = None) -> None:
        """``new``: time and root of a query that starts."""
        if new is None and query not in self.queries:
            return
        scans: dict[int, PlannedScan] = {}
        unlocated: list[str] = []
        todo = [root]
        while todo:
            node = todo.pop()
            todo += node["children"]
            metadata = node["metadata"]
            location = metadata.get("Location", "")
            places = locations(location, stream=stream)
            metric = next((_int(each["accumulatorId"]) for each in node["metrics"] if each["name"] == _FILES), None)
            if places and metric is not None:
                names = partitions(metadata.get("PartitionFilters", "[]"))
                scans[metric] = PlannedScan(query, places, names, location.startswith(_CHOSEN))
            elif node["nodeName"].startswith(_NO_LOCATION):
                unlocated.append(node["nodeName"].removeprefix(_NO_LOCATION))
        if new is not None:
            self._seen(new[0])
            self.queries[query] = new
            for name in unlocated:
                if name in self.unlocated or len(self.unlocated) < _NAMES:
                    self.unlocated[name] = self.unlocated.get(name, 0) + 1
        self.scans |= scans
        # Of queries whose end is missing.
        while len(self.scans) > _PENDING:
            del self.scans[next(iter(self.scans))]

    def _ran(self, metrics: list[tuple[int, int]]) -> Iterator[Scan]:
        for metric, _ in metrics:
            scan = self.scans.pop(_int(metric), None)
            if scan is None or scan.query not in self.queries:
                continue
            time, root = self.queries[scan.query]
            for place in scan.locations:
                if not scan.chosen or (root, place) not in self.statements:
                    yield Scan(time, place, scan.partitions)
                if scan.chosen:
                    self.statements.add((root, place))

    def _end(self, query: int, time: int) -> None:
        self._seen(time)
        self.queries.pop(query, None)
        self.scans = {metric: scan for metric, scan in self.scans.items() if scan.query != query}
        self.statements = {each for each in self.statements if each[0] != query}


def locations(text: str, *, stream: bool = False) -> tuple[str, ...]:
    """Absolute URIs in a scan's ``Location`` (``Utils.buildLocationMetadata``), without those that Spark left out
    for length. A scan of a log, of a change feed, or of the new files of a stream has none.

    >>> locations("PreparedDeltaFileIndex(1 paths)[s3a://lake/my table]")
    ('s3://lake/my%20table',)
    """
    found = re.fullmatch(r"(\w+)\((\d+) paths\)\[(.*)\]", text, re.DOTALL)
    if found is None or _CHANGES.search(found[1]) or (stream and text.startswith(_CHOSEN)):
        return ()
    paths = [found[3]] if found[2] == "1" else [path for path in found[3].split(", ") if path != "..."]
    try:
        return tuple(plain_uri(_KEYS.sub(r"\1", path)) for path in paths if "/_delta_log" not in path)
    except DvMaintenanceError as error:
        raise ValueError("not a location") from error


def partitions(filters: str) -> tuple[str, ...] | None:
    """Names of the partitions that a scan's ``PartitionFilters`` select, by equality and IN with plain values; other
    filters select everything. ``None`` for the whole table.

    >>> partitions("[isnotnull(shop#5), day#4 IN (2026-01-02,2026-01-01), (shop#5 = a b)]")
    ('day=2026-01-02/shop=a b', 'day=2026-01-01/shop=a b')
    """
    allowed: dict[str, list[str]] = {}
    for part in _conjuncts(filters[1:-1]):
        if found := _EQUAL.fullmatch(part):
            values = [found[2]]
        elif found := _IN.fullmatch(part):
            values = found[2].split(",")
        elif found := _IN_SET.fullmatch(part):
            values = found[2].split(", ")
        else:
            continue
        known = allowed.get(found[1])
        allowed[found[1]] = [value for value in dict.fromkeys(values) if known is None or value in known]
    if not allowed or prod(map(len, allowed.values())) > _MOST_PARTITIONS:
        return None
    return tuple(partition_name(dict(zip(allowed, values, strict=True))) for values in product(*allowed.values()))


def _conjuncts(text: str) -> Iterator[str]:
    """The parts of a list, split at the commas outside parentheses; the values of an INSET have none around them."""
    depth, begin = 0, 0
    parts: list[str] = []
    for at, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if depth == 0 and text.startswith(", ", at):
            parts.append(text[begin:at])
            begin = at + 2
    parts.append(text[begin:])
    whole = ""
    for part in parts:
        if whole and " INSET " in whole and "#" not in part and "(" not in part:
            whole += ", " + part
            continue
        if whole:
            yield whole
        whole = part
    yield whole


def _int(value: Any) -> int:
    if type(value) is not int:
        raise TypeError
    return value


def _time(value: Any, between: tuple[int, int]) -> int:
    if not between[0] <= _int(value) <= between[1]:
        raise ValueError("not a plausible time")
    return int(value)
