"""Event logs as Spark 4.1 writes them, shortened, for tests without a JVM."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

SQL = "org.apache.spark.sql.execution.ui.SparkListener"
START = 1_767_225_600_000  # 2026-01-01


def node(name: str, *children: Any, metadata: dict[str, str] | None = None, metrics: Any = ()) -> dict[str, Any]:
    return {
        "nodeName": name,
        "simpleString": name,
        "children": list(children),
        "metadata": metadata or {},
        "metrics": [{"name": what, "accumulatorId": at, "metricType": "sum"} for what, at in metrics],
    }


def scan(location: str, accumulator: int, filters: str = "[]", index: str = "PreparedDeltaFileIndex") -> dict[str, Any]:
    metadata = {"Format": "Parquet", "Location": f"{index}(1 paths)[{location}]", "PartitionFilters": filters}
    metrics = [("number of files read", accumulator), ("size of files read", accumulator + 1)]
    return node("Scan parquet ", metadata=metadata, metrics=metrics)


@dataclass
class SparkLog:
    """The lines of one application."""

    name: str = "etl"
    time: int = START
    lines: list[bytes] = field(default_factory=list)
    queries: int = 0

    def __post_init__(self) -> None:
        self.add("SparkListenerLogStart", **{"Spark Version": "4.1.4"})
        self.add("SparkListenerApplicationStart", **{"App Name": self.name, "App ID": "app-1", "Timestamp": self.time})

    def add(self, event: str, **values: Any) -> None:
        self.lines.append(json.dumps({"Event": event, **values}, separators=(",", ":")).encode())

    def start(self, *plans: Any, description: str = "collect at x.py:1", **values: Any) -> int:
        self.queries += 1
        self.time += 1000
        values = {"rootExecutionId": self.queries, "jobTags": [], **values}
        self.add(
            f"{SQL}SQLExecutionStart",
            executionId=self.queries,
            description=description,
            details="",
            physicalPlanDescription="== Physical Plan ==",
            sparkPlanInfo=node("Union", *plans),
            time=self.time,
            **values,
        )
        return self.queries

    def update(self, query: int, *plans: Any) -> None:
        self.add(f"{SQL}SQLAdaptiveExecutionUpdate", executionId=query, sparkPlanInfo=node("Union", *plans))

    def ran(self, query: int, *accumulators: int) -> None:
        values = [[at, 4] for at in accumulators]
        self.add(f"{SQL}DriverAccumUpdates", executionId=query, accumUpdates=values)

    def end(self, query: int) -> None:
        self.time += 1000
        self.add(f"{SQL}SQLExecutionEnd", executionId=query, time=self.time, errorMessage="")

    def read(self, location: str, filters: str = "[]", **values: Any) -> None:
        """One query with one scan."""
        at = self.queries * 10 + 5
        query = self.start(scan(location, at, filters), **values)
        self.ran(query, at, at + 1)
        self.end(query)

    def bytes(self) -> bytes:
        return b"".join(line + b"\n" for line in self.lines)
