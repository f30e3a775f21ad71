"""A Unity Catalog of our own on the loopback: the part of its Delta API that tells what a table is, and takes commits.

Its rules of ratification are those of Unity Catalog's own server.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import RLock
from typing import Any, ClassVar
from urllib.parse import parse_qsl, unquote, urlsplit
from uuid import NAMESPACE_URL, uuid5

from support.served import served

__all__ = ["TOKEN", "Unity", "unity"]

TOKEN = "token-of-the-test"
MOST_UNPUBLISHED = 10
_PATH = re.compile(r"/api/2\.1/unity-catalog/delta/v1/catalogs/([^/]+)/schemas/([^/]+)/tables/([^/?]+)(/credentials)?")
_GENERIC = re.compile(r"/api/2\.1/unity-catalog/(catalogs|schemas|tables)(?:/([^/?]+))?(?:\?.*)?")
_STATUS = {
    "BadRequestException": 400,
    "NotAuthorizedException": 401,
    "PermissionDeniedException": 403,
    "NoSuchTableException": 404,
    "CommitVersionConflictException": 409,
    "UpdateRequirementConflictException": 409,
    "ResourceExhaustedException": 429,
    "TooManyRequestsException": 429,
    "CommitStateUnknownException": 500,
}


class RequestError(Exception):
    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass
class Unity:
    """A server.

    tables : body of the answer by full name.
    keys : by full name, the function that makes the storage credentials for an operation.
    faults : what the next requests meet, in order: ``busy`` (503 with a page), ``text`` (200, not JSON), ``drop``,
        ``torn`` (the answer breaks off), ``lost`` (carried out, and no answer), ``unknown`` and ``unknown after`` (500,
        not carried out or carried out), ``throttle``, ``denied``, ``expired``, ``slow``, "" for nothing, or a URL to
        which they are redirected.
    post_faults : the same for the next POSTs alone.
    replays : whether a repeated commit is answered like the first one, and not as a conflict.
    ascending, texts : whether it names the oldest commit first, and numbers as texts.
    asked, posted : paths of all requests, and bodies of all POSTs.
    tokens : what each request had for authorization.
    infos : what the generic API says of a name, besides what follows from ``tables``.
    page : names in a page of a list.
    meanwhile : called before the next POST is carried out.

    The newest commit of a table stays in ``tables`` when it is published, as a ``marker`` that no answer shows.
    """

    url: str = ""
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    keys: dict[str, Callable[[str], list[Mapping[str, Any]]]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    post_faults: list[str] = field(default_factory=list)
    replays: bool = True
    ascending: bool = False
    texts: bool = False
    asked: list[str] = field(default_factory=list)
    posted: list[dict[str, Any]] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)
    infos: dict[str, dict[str, Any]] = field(default_factory=dict)
    page: int = 50
    meanwhile: list[Any] = field(default_factory=list)
    names: dict[tuple[str, int], str] = field(default_factory=dict)
    lock: Any = field(default_factory=RLock)

    def add(self, name: str, location: str, **table: Any) -> None:
        """``table``: as in ``catalog.json`` of the golden tables."""
        self.tables[name] = {
            "metadata": {
                "table-type": table.get("table_type", "MANAGED"),
                "table-uuid": table.get("table_id") or str(uuid5(NAMESPACE_URL, name)),
                "location": location,
            },
            **({"commits": table["commits"][::-1]} if "commits" in table else {}),
            **({"latest-table-version": table["latest"]} if "latest" in table else {}),
            **({"allowed-maintenance-operations": table["allowed"]} if "allowed" in table else {}),
        }

    def permit(self, name: str, *operations: str) -> None:
        self.tables[name]["allowed-maintenance-operations"] = list(operations)

    def info(self, name: str) -> dict[str, Any]:
        """What the generic API says of a name."""
        metadata = self.tables.get(name, {}).get("metadata", {})
        managed = metadata.get("table-type") == "MANAGED"
        return {
            "name": name.rpartition(".")[2],
            "table_type": metadata.get("table-type"),
            "data_source_format": "DELTA",
            "table_id": metadata.get("table-uuid"),
            "storage_location": metadata.get("location"),
            "properties": {"delta.feature.catalogManaged": "supported"} if managed else {},
            **self.infos.get(name, {}),
        }

    def generic(self, what: str, name: str | None, query: Mapping[str, str]) -> dict[str, Any]:
        known = sorted({*self.tables, *self.infos})
        if name is not None:
            if name not in known:
                raise RequestError("NoSuchTableException", f"table {name} does not exist")
            return self.info(name)
        if what == "catalogs":
            found = [{"name": each} for each in sorted({each.split(".")[0] for each in known})]
        elif what == "schemas":
            found = [{"name": each} for each in sorted({each.split(".")[1] for each in known})]
        else:
            prefix = f"{query['catalog_name']}.{query['schema_name']}."
            found = [self.info(each) for each in known if each.startswith(prefix)]
            if not found:
                raise RequestError("NoSuchTableException", f"schema {prefix[:-1]} does not exist")
        start = int(query.get("page_token", 0))
        end = start + min(self.page, int(query.get("max_results", self.page)))
        return {what: found[start:end], **({"next_page_token": str(end)} if end < len(found) else {})}

    def loaded(self, name: str) -> dict[str, Any]:
        found = json.loads(json.dumps(self.tables[name]))
        if found["metadata"]["table-type"] == "MANAGED":
            found.setdefault("latest-table-version", 0)
        if found.pop("marker", False):
            found["commits"].pop()
        if self.ascending:
            found.get("commits", []).reverse()
        if self.texts:
            found["latest-table-version"] = str(found.get("latest-table-version", 0))
            found["commits"] = [{key: str(value) for key, value in each.items()} for each in found.get("commits", [])]
        return found

    def update(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        table = self.tables[name]
        wanted = {each["type"]: each for each in body["requirements"]}
        if "assert-table-uuid" not in wanted:
            raise RequestError("BadRequestException", "assert-table-uuid is missing")
        if wanted["assert-table-uuid"]["uuid"] != table["metadata"]["table-uuid"]:
            raise RequestError("UpdateRequirementConflictException", "the name belongs to another table")
        updates = {each["action"]: each for each in body["updates"]}
        if (commit := updates.pop("add-commit", None)) and not self._ratify(name, table, commit["commit"]):
            return self.loaded(name)  # a repeated request: nothing is applied
        if report := updates.pop("set-latest-backfilled-version", None):
            self._forget(table, report["latest-published-version"])
        if domains := updates.pop("set-domain-metadata", None):
            table.setdefault("domains", {}).update(domains["updates"])
        if updates:
            raise RequestError("BadRequestException", f"unknown actions {list(updates)}")
        return self.loaded(name)

    def _ratify(self, name: str, table: dict[str, Any], commit: dict[str, Any]) -> bool:
        """Returns whether the commit is new."""
        for key in ("version", "timestamp", "file-size", "file-modification-timestamp"):
            if not isinstance(commit[key], int) or commit[key] <= 0:
                raise RequestError("BadRequestException", f"{key} must be positive")
        commits, version = table.setdefault("commits", []), commit["version"]
        latest = table.get("latest-table-version")
        known = {each["version"]: each["file-name"] for each in commits} | {
            at: each for (of, at), each in self.names.items() if of == name
        }
        if latest is not None and version <= latest:
            if known.get(version) == commit["file-name"] and self.replays:
                return False
            raise RequestError("CommitVersionConflictException", f"version {version} is taken")
        if latest is not None and version > latest + 1:
            raise RequestError("BadRequestException", f"version {version} after {latest}")
        if len(commits) - bool(table.get("marker")) >= MOST_UNPUBLISHED:
            raise RequestError("ResourceExhaustedException", f"{MOST_UNPUBLISHED} commits are not published")
        place = urlsplit(table["metadata"]["location"])
        log = Path(unquote(place.path)) / "_delta_log"
        assert (
            place.scheme != "file"
            or (log / "_staged_commits" / commit["file-name"]).stat().st_size == commit["file-size"]
        )
        self.names[name, version] = commit["file-name"]
        commits.insert(0, commit)
        table["latest-table-version"] = version
        return True

    def _forget(self, table: dict[str, Any], published: int) -> None:
        if published > table["latest-table-version"]:
            raise RequestError("BadRequestException", f"version {published} does not exist")
        newest = max(each["version"] for each in table["commits"])
        table["commits"] = [each for each in table["commits"] if each["version"] > min(published, newest - 1)]
        table["marker"] = published == newest


class _Handler(BaseHTTPRequestHandler):
    made: ClassVar[Unity]
    protocol_version = "HTTP/1.0"

    def do_GET(self) -> None:
        self.serve(None)

    def do_POST(self) -> None:
        self.serve(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def serve(self, body: dict[str, Any] | None) -> None:
        made = self.made
        made.asked.append(self.path)
        made.tokens.append(self.headers.get("Authorization"))
        faults = made.faults if made.faults or body is None else made.post_faults
        fault = faults.pop(0) if faults else ""
        if body is not None:
            made.posted.append(body)
            if made.meanwhile:
                made.meanwhile.pop(0)()
        if fault == "drop":
            return
        if fault == "torn":
            self.answer(200, b"{", missing=7)
        elif fault.startswith("http"):
            self.answer(302, b"", Location=fault)
        elif fault == "busy":
            self.answer(503, b"<html>busy</html>")
        elif fault == "text":
            self.answer(200, b"hello")
        elif fault in _REFUSED:
            self.answer(*error(_REFUSED[fault], fault), **({"Retry-After": "0"} if fault == "throttle" else {}))
        else:
            if fault == "slow":
                time.sleep(0.2)
            try:
                with made.lock:
                    found = self.found(body)
            except RequestError as refused:
                found = error(refused.kind, str(refused))
            if fault == "unknown after":
                found = error("CommitStateUnknownException", fault)
            if fault != "lost":
                self.answer(*found)

    def found(self, body: dict[str, Any] | None) -> tuple[int, Any]:
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            raise RequestError("PermissionDeniedException", "no right to it")
        if generic := _GENERIC.fullmatch(self.path):
            name = None if generic[2] is None else unquote(generic[2])
            return 200, self.made.generic(generic[1], name, dict(parse_qsl(urlsplit(self.path).query)))
        match = _PATH.match(self.path)
        name = ".".join(map(unquote, match.groups()[:3])) if match else ""
        if match is None or name not in self.made.tables:
            raise RequestError("NoSuchTableException", f"table {name} does not exist")
        if match[4]:
            vend = self.made.keys.get(name, lambda _: [])
            return 200, {"storage-credentials": vend(self.path.rpartition("=")[2])}
        return 200, self.made.loaded(name) if body is None else self.made.update(name, body)

    def answer(self, status: int, body: Any, *, missing: int = 0, **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data) + missing), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


_REFUSED = {
    "unknown": "CommitStateUnknownException",
    "throttle": "TooManyRequestsException",
    "denied": "PermissionDeniedException",
    "expired": "NotAuthorizedException",
}


@contextmanager
def unity() -> Iterator[Unity]:
    made = Unity()
    with served(_Handler, made=made) as made.url:
        yield made


def error(kind: str, message: str) -> tuple[int, dict[str, Any]]:
    return _STATUS[kind], {"error": {"type": kind, "message": message, "code": _STATUS[kind]}}
