"""Keys that Unity Catalog vends: asked by whoever needs them, with the least right, and renewed before they end."""

from __future__ import annotations

import itertools
import json
import pickle
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest
from support.keyed_store import KeyedStore, keyed_store
from support.places import GOLDEN
from support.unity import TOKEN, Unity

from dv_maintenance.credentials import Keys
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.engine.spark import SparkEngine
from dv_maintenance.errors import RefusedError, StorageDeniedError
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.maintenance.read import read
from dv_maintenance.storage import Storage
from dv_maintenance.tables import open_table
from dv_maintenance.tables.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "uc.main.golden.staged_tail"
HOUR = 3_600_000


@pytest.fixture
def store(golden: Any) -> Iterator[KeyedStore]:
    del golden
    with keyed_store() as made:
        folder = GOLDEN / "unity" / "staged_tail"
        for path in folder.rglob("*"):
            if path.is_file():
                made.files[f"t/{path.relative_to(folder).as_posix()}"] = path.read_bytes()
        yield made


@pytest.fixture
def vending(server: Unity, store: KeyedStore) -> Unity:
    table = json.loads((GOLDEN / "unity" / "staged_tail" / "catalog.json").read_text())
    del table["location"]
    server.add(table.pop("name"), "s3://lake/t", **{**table, "allowed": ["DATA_REORGANIZATION"]})
    numbers = itertools.count()

    def vend(operation: str) -> list[Mapping[str, Any]]:
        token = f"{operation}-{next(numbers)}"
        (store.writers if operation == "READ_WRITE" else store.readers).add(token)
        config = {"s3.access-key-id": "A", "s3.secret-access-key": "S", "s3.session-token": token}
        ends = int(time.time() * 1000) + HOUR
        wider = {"prefix": "s3://lake", "config": {**config, "s3.session-token": "too wide"}}
        return [wider, {"prefix": "s3://lake/t", "expiration-time-ms": ends, "config": config}]

    server.keys["main.golden.staged_tail"] = vend
    return server


def opened(store: KeyedStore) -> Table:
    return open_table(NAME, storage_options=store.options)


def rows(table: Table) -> list[int]:
    _, batches = read(table)
    return sorted(row["id"] for batch in batches for row in batch.to_pylist())


def asked(server: Unity) -> list[str]:
    return [path.rpartition("=")[2] for path in server.asked if "/credentials" in path]


def test_reading_asks_for_keys_to_read_once(vending: Unity, store: KeyedStore) -> None:
    assert len(rows(opened(store))) > 10
    assert asked(vending) == ["READ"]
    assert {token for _, token in store.used} == {"READ-0"}


def test_a_write_asks_for_keys_to_write(vending: Unity, store: KeyedStore) -> None:
    before = rows(opened(store))
    table = opened(store)
    assert purge(table, LocalEngine()).verified
    assert rows(opened(store)) == before
    assert set(asked(vending)) == {"READ", "READ_WRITE"}
    assert store.refused == 0
    changes = {token.partition("-")[0] for command, token in store.used if command not in {"GET", "HEAD"}}
    assert changes == {"READ_WRITE"}


def test_another_process_asks_for_itself(vending: Unity, store: KeyedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker has neither the file of catalogs nor the variables that it names."""
    table = opened(store)
    table.version()
    sent = pickle.dumps(table.storage.options)
    monkeypatch.delenv("DVM_CATALOGS")
    monkeypatch.delenv("UC_TOKEN")
    vending.asked.clear()
    storage = Storage("s3://lake/t", pickle.loads(sent))
    assert storage.get("_delta_log/00000000000000000000.json")
    assert len(asked(vending)) <= 1
    assert TOKEN not in repr(storage) + repr(table)


@pytest.mark.deep
def test_workers_of_spark_ask_for_themselves(vending: Unity, store: KeyedStore, spark: SparkSession) -> None:
    before = rows(opened(store))
    table = opened(store)
    assert purge(table, SparkEngine(spark)).verified
    assert rows(opened(store)) == before
    assert asked(vending).count("READ_WRITE") > 1, "the driver's, and a worker's"
    data = {token for command, token in store.used if command == "PUT"}
    assert len(data) > 1
    assert {token.partition("-")[0] for token in data} == {"READ_WRITE"}
    assert store.refused == 0


def test_keys_that_the_store_refuses_are_asked_for_once_more(vending: Unity, store: KeyedStore) -> None:
    table = opened(store)
    before = rows(table)
    store.readers.clear()  # revoked, though they have an hour left
    assert rows(table) == before
    assert asked(vending) == ["READ", "READ"]


def test_a_store_that_refuses_all_keys_is_named(
    vending: Unity, store: KeyedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "readers", frozenset())
    vend = vending.keys["main.golden.staged_tail"]
    vending.keys["main.golden.staged_tail"] = lambda _: [
        {**vend("READ_WRITE")[1], "config": {"s3.access-key-id": "A", "s3.secret-access-key": "S"}}
    ]
    with pytest.raises(StorageDeniedError, match=rf"the keys that the catalog vends for {NAME} \(READ\)"):
        opened(store).snapshot()
    assert asked(vending) == ["READ", "READ"]


def test_files_beyond_the_table_are_refused(vending: Unity, store: KeyedStore) -> None:
    table = opened(store)
    with pytest.raises(RefusedError, match=r"s3://lake/other/a\.parquet lies outside the table"):
        table.storage.get("s3://lake/other/a.parquet")
    assert table.storage.get("s3://lake/t/_delta_log/00000000000000000000.json")
    assert asked(vending)[:1] == ["READ"]


def test_own_keys_go_before_vended_ones(vending: Unity, store: KeyedStore) -> None:
    store.writers.add("mine")
    own = {"aws_access_key_id": "A", "aws_secret_access_key": "S", "aws_session_token": "mine"}
    table = open_table(NAME, storage_options={**store.options, **own})
    assert len(rows(table)) > 10
    assert asked(vending) == []


def test_a_catalog_that_vends_nothing(vending: Unity, store: KeyedStore) -> None:
    vending.keys["main.golden.staged_tail"] = lambda _: []
    with pytest.raises(Exception, match="vends no keys for s3://lake/t"):
        opened(store).snapshot()


@pytest.mark.parametrize(("left", "times"), [(3600, 1), (200, 1), (-10, 3), (None, 1)])
def test_keys_are_kept_for_half_of_their_time(left: int | None, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """obstore asks before every request once five minutes are left."""
    from datetime import UTC, datetime, timedelta

    made: list[str] = []

    def vend(options: Mapping[str, str]) -> Mapping[str, Any]:
        made.append(options["catalog.table"])
        return {"token": "t", "expires_at": None if left is None else datetime.now(UTC) + timedelta(seconds=left)}

    monkeypatch.setattr("dv_maintenance.catalogs.unity.vend", vend)
    keys = Keys({"catalog.type": "unity", "catalog.table": "t"})
    for _ in range(3):
        keys()
    assert len(made) == times
    assert keys.renew()
    assert not keys.renew(), "once"
