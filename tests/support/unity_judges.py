"""Others that read and write tables which a Unity Catalog manages: Delta's kernel in Java, and DuckDB."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from dv_maintenance.testing.backends import Row
from support.places import JARS, UNITY

__all__ = ["Kernel", "KernelConflictError", "KernelError", "NamedByServer", "duckdb_rows", "kernel_jars"]

_SOURCE = Path(__file__).parent / "KernelJudge.java"
_LOST = re.compile(
    "ConcurrentWriteException|MaxCommitRetryLimitReachedException"
    # It looks for the commits that were faster in the log, where they need not be yet.
    "|New commit version [0-9]+ should be greater than the previous commit attempt version"
)
_EXTENSIONS = ("httpfs", "delta", "unity_catalog")


class KernelError(Exception):
    """What the kernel refused or failed at: its exceptions, from the outermost to the cause."""


class KernelConflictError(KernelError):
    """Another writer was faster."""


@dataclass(frozen=True, slots=True)
class NamedByServer:
    """A table as a server names it. ``name``: ``CATALOG.SCHEMA.TABLE``."""

    uri: str
    token: str
    name: str
    uuid: str
    location: str


def kernel_jars() -> list[Path]:
    """Those of the kernel and its client; none if they were not fetched. Hadoop's and others come with PySpark."""
    return [*JARS.glob("*.jar"), *UNITY.glob("*.jar")] if JARS.is_dir() and UNITY.is_dir() else []


class Kernel:
    """A process. Its JVM starts once. Requests wait for each other.

    failed_afterwards : what it could not do once it had committed.
    """

    def __init__(self) -> None:
        import pyspark

        home = os.environ.get("JAVA_HOME")
        path = [*kernel_jars(), Path(pyspark.__file__).parent / "jars" / "*"]
        command = [f"{home}/bin/java" if home else "java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m"]
        # A Java without a compiler will do.
        command += ["-Dorg.codehaus.janino.UnitCompiler.defaultTargetVersion=8", "-Dlog4j2.level=OFF"]
        command += [
            "-cp",
            os.pathsep.join(map(str, path)),
            "org.codehaus.janino.SimpleCompiler",
            str(_SOURCE),
            _SOURCE.stem,
        ]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._turn = Lock()
        self.failed_afterwards: list[str] = []

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(60)

    def rows(self, table: NamedByServer, version: int | None = None) -> tuple[int, list[Row]]:
        """A version, the newest one for ``None``, and its rows."""
        answer = self._ask("read", table, version=version)
        return answer["version"], [tuple(row) for row in answer["rows"]]

    def numbers(self, table: NamedByServer, version: int) -> dict[int, tuple[int, int]]:
        """Of each row's ``id``: the number that the table tracks it by, and the version that changed it last."""
        rows = self._ask("read", table, version=version, tracked=True)["rows"]
        return {row[0]: (row[3], row[4]) for row in rows}

    def append(self, table: NamedByServer, rows: Sequence[Row], *, publish: bool) -> int:
        """Append rows of one partition as one file, rebased on what others commit. Returns the version."""
        return self._ask("append", table, rows=rows, publish=publish)["version"]

    def rewrite_without(self, table: NamedByServer, ids: Collection[int], *, publish: bool) -> int:
        """Write the files that hold these ids again, without them. Returns the version. Raises KernelConflictError if
        anybody commits meanwhile.
        """
        return self._ask("rewrite", table, ids=sorted(ids), publish=publish)["version"]

    def publish(self, table: NamedByServer) -> None:
        self._ask("publish", table)

    def checkpoint(self, table: NamedByServer) -> int:
        """Of the newest version, which is returned."""
        return self._ask("checkpoint", table)["version"]

    def _ask(self, verb: str, table: NamedByServer, **more: Any) -> Mapping[str, Any]:
        asked = {"do": verb, "uri": table.uri, "token": table.token, "name": table.name.split("."), "id": table.uuid}
        asked |= {"path": table.location, **{key: each for key, each in more.items() if each is not None}}
        process = self._process
        assert process.stdin
        assert process.stdout
        with self._turn:
            process.stdin.write(json.dumps(asked) + "\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline())
        self.failed_afterwards += answer.get("afterwards", [])
        if said := answer.get("error"):
            raise (KernelConflictError if _LOST.search(said) else KernelError)(said)
        return answer


def duckdb_rows(table: NamedByServer) -> list[Row]:
    """The newest rows, as DuckDB reads them by name. Attached for writing, it would publish commits."""
    import duckdb

    catalog, schema, name = table.name.split(".")
    with duckdb.connect(config={"allow_unsigned_extensions": "true"}) as made:
        for each in _EXTENSIONS:
            found = importlib.util.find_spec(f"duckdb_extension_{each}")
            assert found is not None
            assert found.origin is not None
            (extension,) = Path(found.origin).parent.glob("extensions/*/*.duckdb_extension")
            made.load_extension(str(extension))
        made.execute(
            f"CREATE SECRET (TYPE unity_catalog, TOKEN '{table.token}', ENDPOINT '{table.uri}', AWS_REGION 'us-east-1')"
        )
        made.execute(f"ATTACH '{catalog}' AS lake (TYPE unity_catalog, DEFAULT_SCHEMA '{schema}', READ_ONLY)")
        return made.execute(f'SELECT id, p, v FROM lake."{schema}"."{name}"').fetchall()
