"""Ten thousand tables in fifty schemas of a catalog: how long a listing and a sensor's looks take, and what they ask.

    python benchmarks/bench_catalog.py [TABLES] [--latency 0.03] [--dagster]

The catalog is a double of Unity Catalog's server in a process of its own, which takes so many seconds for each answer.
Half of the tables are managed, half external; their names share a few tables on local disk, so that nearly all of the
time is the catalog's. Limits to compare the times with: a sensor's tick has 35 seconds for its looks. ``--dagster``:
also whole ticks of Dagster's sensor.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from urllib.request import urlopen

import pyarrow as pa

from dv_maintenance.service.cursor import Cursor
from dv_maintenance.service.evaluation import Limits, evaluate
from dv_maintenance.service.observe import Observer
from dv_maintenance.service.tables_file import TableSettings, WatchConfig
from dv_maintenance.service.verbs.like_sensor import NoOrchestrator
from dv_maintenance.testing.delta_builder import DeltaBuilder

TABLES = 10_000
SCHEMAS = 50
_API = "/api/2.1/unity-catalog"
_FEATURES = ("catalogManaged", "v2Checkpoint", "vacuumProtocolCheck")


class Catalog:
    """``main.sNN.tNNNNN``, the tables of even numbers managed."""

    def __init__(self, managed: str, external: str, tables: int, latency: float) -> None:
        self.places = {True: managed, False: external}
        self.latency = latency
        self.names: dict[str, list[int]] = {}
        for number in range(tables):
            self.names.setdefault(f"s{number % SCHEMAS:02}", []).append(number // SCHEMAS * SCHEMAS + number % SCHEMAS)
        self.asked = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                target = head.split(" ", 2)[1]
                if target == "/-/asked":
                    body, self.asked = str(self.asked).encode(), 0
                else:
                    self.asked += 1
                    body = json.dumps(self.answer(target.removeprefix(_API))).encode()
                    await asyncio.sleep(self.latency)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                await writer.drain()
                if "connection: close" in head.lower():
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def answer(self, target: str) -> dict[str, object]:
        split = urlsplit(target)
        query = {key: values[0] for key, values in parse_qs(split.query).items()}
        parts = [unquote(each) for each in split.path.split("/") if each]
        if parts == ["schemas"]:
            return {"schemas": [{"name": name} for name in self.names]}
        if parts == ["tables"]:
            start, known = int(query.get("page_token", 0)), self.names[query["schema_name"]]
            end = start + int(query["max_results"])
            more = {"next_page_token": str(end)} if end < len(known) else {}
            return {"tables": [self.info(f"t{number:05}") for number in known[start:end]], **more}
        if parts[0] == "tables":
            return self.info(parts[1].rpartition(".")[2])
        info = self.info(parts[-1])
        metadata = {"table-type": info["table_type"], "table-uuid": info["table_id"]}
        found: dict[str, object] = {"metadata": {**metadata, "location": info["storage_location"]}}
        return {**found, "latest-table-version": 0} if info["table_type"] == "MANAGED" else found

    def info(self, table: str) -> dict[str, object]:
        managed = int(table[1:]) % 2 == 0
        return {
            "name": table,
            "table_type": "MANAGED" if managed else "EXTERNAL",
            "data_source_format": "DELTA",
            "table_id": table,
            "storage_location": self.places[managed],
            "columns": [{"name": f"c{number}", "type_text": "bigint"} for number in range(20)],
        }


@contextmanager
def catalog(*arguments: object) -> Iterator[str]:
    """The address of a server in a process of its own."""
    command = [sys.executable, __file__, "--serve", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.terminate()


async def serving(managed: str, external: str, tables: str, latency: str) -> None:
    made = Catalog(managed, external, int(tables), float(latency))
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


class Measured:
    """Prints what a piece of work took: seconds, CPU seconds of this process, and requests."""

    def __init__(self, url: str, what: str, tables: int) -> None:
        self.url, self.what, self.tables = url, what, tables

    def __enter__(self) -> None:
        self._asked()
        self.start, self.cpu = time.perf_counter(), time.process_time()

    def __exit__(self, *_: object) -> None:
        took, cpu = time.perf_counter() - self.start, time.process_time() - self.cpu
        each = f"{took:7.2f} s, {cpu:6.2f} s of CPU, {self._asked():6} requests"
        print(f"{self.what:44} {each} for {self.tables} tables", flush=True)

    def _asked(self) -> int:
        with urlopen(f"{self.url}/-/asked") as answer:
            return int(answer.read())


def look(tables: list[TableSettings], cursor: str | None, observer: Observer) -> str:
    found = evaluate(tables, cursor, NoOrchestrator(), observer, Limits(600, 600, requests=100))
    assert not found.errors, next(iter(found.errors.values()))
    assert "left for the next tick, from" not in found.reason or "run" in found.reason, found.reason
    return found.cursor.to_json()


def build(folder: Path) -> tuple[str, str]:
    places = folder / "managed", folder / "external"
    for place, features in zip(places, (_FEATURES, ()), strict=True):
        properties = {"delta.enableInCommitTimestamps": "true"} if features else {}
        made = DeltaBuilder(str(place))
        made.create(pa.schema([("id", pa.int64())]), properties=properties, features=features)
        if not features:
            made.append(pa.table({"id": range(1000)}))
    return places[0].as_uri(), places[1].as_uri()


def ticks(tables: list[TableSettings], url: str) -> None:
    """Until every table is known, and two more."""
    from bench_sensor import Ticks, load, on_disk

    with tempfile.TemporaryDirectory() as home, on_disk(home) as instance:
        sensor = Ticks(load(tables), instance)
        while len(Cursor.from_json(sensor.cursor).tables) < len(tables):
            with Measured(url, "Dagster's tick over new tables", len(tables)):
                sensor.tick()
        for _ in range(2):
            with Measured(url, "Dagster's tick over unchanged tables", len(tables)):
                assert not sensor.tick()


def main(count: int, latency: float, *, dagster: bool) -> None:
    with tempfile.TemporaryDirectory() as folder, catalog(*build(Path(folder)), count, latency) as url:
        file = Path(folder) / "tables.yaml"
        schemas = "".join(f"- {{schema: uc.main.s{number:02}}}\n" for number in range(SCHEMAS))
        file.write_text(f"catalogs: {{uc: {{type: unity, uri: '{url}', token: x}}}}\nfolders:\n{schemas}")
        with Measured(url, "listing of the schemas", count):
            tables = list(WatchConfig.load(str(file)).tables)
        assert len(tables) == count
        observer = Observer(data_versions=True, checks=True)
        with Measured(url, "first look", count):
            cursor = look(tables, None, observer)
        for _ in range(2):
            with Measured(url, "look at unchanged tables", count):
                cursor = look(tables, cursor, observer)
        with Measured(url, "look at unchanged tables after a restart", count):
            look(tables, cursor, Observer(data_versions=True, checks=True))
        if dagster:
            ticks(tables, url)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        asyncio.run(serving(*sys.argv[2:]))
    else:
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("tables", nargs="?", type=int, default=TABLES)
        parser.add_argument("--latency", type=float, default=0.03, help="seconds for each answer of the catalog")
        parser.add_argument("--dagster", action="store_true", help="also ticks of a sensor")
        arguments = parser.parse_args()
        main(arguments.tables, arguments.latency, dagster=arguments.dagster)
