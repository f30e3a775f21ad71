"""A REST catalog with one Iceberg table, in this process: it speaks as much of the protocol as a commit needs, checks
what a server must check, and fails on demand.

Protocol: Iceberg's REST catalog specification, loadTable and updateTable.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import RLock
from typing import Any
from uuid import uuid4

from support.served import served

__all__ = ["RestCatalog", "serving"]

# Status and whether the commit is made first; ``None`` closes the connection without an answer.
Failure = tuple[int | None, bool]


class RestCatalog:
    """Its table is ``ns.t``.

    failures : what becomes of the next commits.
    before : is called before the next commit is looked at.
    commits : how many were made.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        newest = max((root / "metadata").glob("v*.metadata.json"), key=lambda path: int(path.name[1:].split(".")[0]))
        self.location = str(newest)
        self.failures: list[Failure] = []
        self.before: Callable[[], object] | None = None
        self.commits = 0
        self._lock = RLock()

    def loaded(self) -> dict[str, Any]:
        metadata = json.loads(Path(self.location).read_text())
        return {"metadata-location": self.location, "metadata": metadata, "config": {}}

    def commit(self, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        act, self.before = self.before, None
        if act is not None:
            act()
        with self._lock:
            body = self.loaded()["metadata"]
            for each in request["requirements"]:
                if problem := _unmet(body, each):
                    return 409, {"error": {"message": problem, "type": "CommitFailedException", "code": 409}}
            for each in request["updates"]:
                _update(body, each)
            self.commits += 1
            self.location = str(self.root / "metadata" / f"{self.commits:05d}-{uuid4()}.metadata.json")
            Path(self.location).write_text(json.dumps(body))
            return 200, self.loaded()


def _unmet(body: dict[str, Any], requirement: dict[str, Any]) -> str:
    match requirement["type"]:
        case "assert-table-uuid":
            return "" if body["table-uuid"] == requirement["uuid"] else "another UUID"
        case "assert-ref-snapshot-id":
            found = body["refs"].get(requirement["ref"], {}).get("snapshot-id")
            return "" if found == requirement.get("snapshot-id") else f"{requirement['ref']} is at {found}"
        case other:
            return f"unknown requirement {other}"


def _update(body: dict[str, Any], update: dict[str, Any]) -> None:
    match update["action"]:
        case "add-snapshot":
            snapshot = update["snapshot"]
            assert snapshot["sequence-number"] == body["last-sequence-number"] + 1
            assert snapshot["first-row-id"] == body["next-row-id"]
            body["snapshots"].append(snapshot)
            body["last-sequence-number"] = snapshot["sequence-number"]
            body["next-row-id"] += snapshot["added-rows"]
        case "set-snapshot-ref":
            number = update["snapshot-id"]
            assert number in {each["snapshot-id"] for each in body["snapshots"]}
            body["refs"][update["ref-name"]] = {"type": update["type"], "snapshot-id": number}
            body["current-snapshot-id"] = number
            body["snapshot-log"].append({"timestamp-ms": time.time_ns() // 1_000_000, "snapshot-id": number})
        case "remove-snapshot-ref":
            del body["refs"][update["ref-name"]]
        case "remove-snapshots":
            gone = set(update["snapshot-ids"])
            assert not gone & {each["snapshot-id"] for each in body["refs"].values()}
            body["snapshots"] = [each for each in body["snapshots"] if each["snapshot-id"] not in gone]
            body["snapshot-log"] = [each for each in body["snapshot-log"] if each["snapshot-id"] not in gone]
        case other:
            raise AssertionError(other)


@contextmanager
def serving(catalog: RestCatalog) -> Iterator[str]:
    """The catalog's address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.startswith("/v1/config"):
                self._answer(200, {"defaults": {}, "overrides": {}})
            elif self.path.startswith("/v1/namespaces/ns/tables/t"):
                self._answer(200, catalog.loaded())
            else:
                self._answer(404, {"error": {"message": "there is none", "type": "NoSuchTableException", "code": 404}})

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, made = catalog.failures.pop(0) if catalog.failures and catalog.before is None else (200, True)
            answer = catalog.commit(request) if made else (0, {})
            if status == 200:
                self._answer(*answer)
            elif status is None:
                self.close_connection = True
            else:
                self._answer(status, {"error": {"message": "try again", "type": "ServiceFailure", "code": status}})

        def _answer(self, status: int, body: dict[str, Any]) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    with served(Handler) as url:
        yield url
