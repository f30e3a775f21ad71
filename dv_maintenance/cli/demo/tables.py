"""The tables that ``dvm demo`` maintains: six shapes, each with the deletions that wear such a table down.

``sensors/tables.yaml`` has the settings that go with them. Days end with today, so that they are Dagster partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.files.avro import container as avro
from dv_maintenance.files.lance_library import library
from dv_maintenance.maintenance.health import health
from dv_maintenance.tables import open_table
from dv_maintenance.testing.delta_builder import DeltaBuilder
from dv_maintenance.testing.iceberg_builder import IcebergBuilder
from dv_maintenance.testing.paimon_builder import PaimonBuilder

_SEED = 2026
_Numbers = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class DemoTable:
    """``share``: of the rows of the whole demo. ``build``: at a place, with so many rows. ``use``: what the table's
    users do to it once it has been maintained, so that there is work again; ``used`` puts that in words. ``needs``:
    raises RefusedError where a package is missing that it can't be built without.
    """

    share: float
    build: Callable[[str, int], None]
    use: Callable[[str], object]
    used: str
    needs: Callable[[], object] = lambda: None


# -- orders: by day, every deleted row has to go ---------------------------------------------------------------------

_ORDERS = pa.schema(
    [
        ("order_id", pa.int64()),
        ("customer", pa.int32()),
        ("amount", pa.float64()),
        ("note", pa.string()),
        ("day", pa.date32()),
    ]
)
_ORDER_DAYS = 14
_FILES_PER_DAY = 3
_NOTES = ("", "gift", "express", "call before delivery", "leave at the door")
# So that vacuum has something to do now and not in a week. Real tables keep the default.
_NO_RETENTION = {"delta.deletedFileRetentionDuration": "interval 0 seconds"}


def _build_orders(place: str, rows: int) -> None:
    """A quarter of all customers leaves, then small orders go (so that DVs are replaced), then nearly all of a day."""
    builder = DeltaBuilder(place).create(_ORDERS, partition_by=["day"], properties=_NO_RETENTION)
    builder.append(_orders(rows), files=_FILES_PER_DAY)
    builder.delete(lambda batch: pc.equal(pc.bit_wise_and(batch["customer"], 3), 0))
    builder.delete(lambda batch: pc.less(batch["amount"], 20.0))
    day = pa.scalar(_days(_ORDER_DAYS)[-3])
    builder.delete(lambda batch: pc.and_(pc.equal(batch["day"], day), pc.greater(batch["amount"], 60.0)))


def _use_orders(place: str) -> None:
    days = pa.array(_days(4))
    DeltaBuilder(place).delete(
        lambda batch: pc.and_(pc.is_in(batch["day"], days), pc.equal(pc.bit_wise_and(batch["customer"], 3), 1))
    )


def _orders(rows: int) -> Iterator[pa.Table]:
    random = np.random.default_rng(_SEED)
    notes = pa.array(_NOTES)
    for day, ids in _by_day(rows, _ORDER_DAYS):
        columns = [
            pa.array(ids),
            pa.array(random.integers(0, 200_000, ids.size, dtype=np.int32)),
            pa.array(random.integers(100, 100_000, ids.size) / 100),
            notes.take(pa.array(random.integers(0, len(_NOTES), ids.size))),
            pa.repeat(pa.scalar(day), ids.size),
        ]
        yield pa.table(columns, schema=_ORDERS)


# -- customers: no partitions, small files as a stream leaves them, mapped columns -----------------------------------

_CUSTOMERS = pa.schema(
    [("customer id", pa.int64()), ("name", pa.string()), ("city", pa.string()), ("credit (EUR)", pa.decimal128(12, 2))]
)
_CITIES = ("Graz", "Linz", "Salzburg", "Wien", "Innsbruck", "Klagenfurt")
_BATCHES = 5
_FILES_PER_BATCH = 12
# Names with spaces and brackets are what column mapping is for.
_MAPPED = {"delta.columnMapping.mode": "name"}


def _build_customers(place: str, rows: int) -> None:
    """Micro-batches of small files; some customers take their leave. Their DVs are so few that the log holds them."""
    builder = DeltaBuilder(place).create(_CUSTOMERS, properties=_MAPPED)
    for ids in np.array_split(np.arange(rows), _BATCHES):
        builder.append(_customers(ids), files=_FILES_PER_BATCH)
    builder.delete(lambda batch: _every(batch["customer id"], 127), style="inline")
    builder.delete(lambda batch: _every(batch["customer id"], 63), style="inline")


def _use_customers(place: str) -> None:
    """A large batch of new customers in small files. A merge of files that are small beside the others would wait."""
    known = health(open_table(place).snapshot()).counts.live_rows or 0
    DeltaBuilder(place).append(_customers(np.arange(1_000_000_000, 1_000_000_000 + known)), files=_FILES_PER_BATCH)


def _customers(ids: _Numbers) -> pa.Table:
    random = np.random.default_rng([_SEED, int(ids[0])])
    numbers = pa.array(ids)
    columns = [
        numbers,
        pc.binary_join_element_wise("customer", numbers.cast(pa.string()), " "),
        pa.array(_CITIES).take(pa.array(random.integers(0, len(_CITIES), ids.size))),
        pa.array(random.integers(0, 100_000, ids.size, dtype=np.int32)).cast(pa.decimal128(12, 2)),
    ]
    return pa.table(columns, schema=_CUSTOMERS)


# -- events: by day and region, nested columns; most deletions are too few to be worth a rewrite ---------------------

_DEVICE = pa.struct([("os", pa.string()), ("version", pa.int32())])
_EVENTS = pa.schema(
    [
        ("event_id", pa.int64()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("kind", pa.string()),
        ("device", _DEVICE),
        ("tags", pa.list_(pa.string())),
        ("attributes", pa.map_(pa.string(), pa.string())),
        *((f"metric_{number}", pa.float32()) for number in range(1, 9)),
        ("day", pa.date32()),
        ("region", pa.string()),
    ]
)
_EVENT_DAYS = 7
_REGIONS = ("eu", "us", "apac")
_KINDS = ("view", "click", "search", "purchase")
_SYSTEMS = ("android", "ios", "linux")
_TAGS = ("new", "beta", "promoted", "returning")


def _build_events(place: str, rows: int) -> None:
    """An eighth of eu's last three days is deleted, and a 64th of each day in us; apac is never touched."""
    builder = DeltaBuilder(place).create(_EVENTS, partition_by=["day", "region"])
    builder.append(_events(rows))
    days = pa.array(_days(3))
    builder.delete(lambda batch: pc.and_(_in_region(batch, "eu", 7), pc.is_in(batch["day"], days)))
    builder.delete(lambda batch: _in_region(batch, "us", 63))


def _use_events(place: str) -> None:
    days = pa.array(_days(2))
    DeltaBuilder(place).delete(lambda batch: pc.and_(_in_region(batch, "us", 15), pc.is_in(batch["day"], days)))


def _in_region(batch: pa.RecordBatch, region: str, bits: int) -> pa.BooleanArray:
    return pc.and_(pc.equal(batch["region"], region), _every(batch["event_id"], bits))


def _events(rows: int) -> Iterator[pa.Table]:
    random = np.random.default_rng(_SEED)

    def one_of(values: tuple[str, ...], size: int) -> pa.Array:
        return pa.array(values).take(pa.array(random.integers(0, len(values), size)))

    for day, ids in _by_day(rows, _EVENT_DAYS):
        midnight = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * 1_000_000
        moments = midnight + np.sort(random.integers(0, 86_400_000_000, ids.size))
        versions = pa.array(random.integers(8, 20, ids.size, dtype=np.int32))
        tag_ends = np.concatenate([[0], np.cumsum(random.integers(0, 3, ids.size))]).astype(np.int32)
        each = pa.array(np.arange(ids.size + 1, dtype=np.int32))
        columns = [
            pa.array(ids),
            pa.array(moments).cast(pa.timestamp("us", tz="UTC")),
            one_of(_KINDS, ids.size),
            pa.StructArray.from_arrays([one_of(_SYSTEMS, ids.size), versions], fields=list(_DEVICE)),
            pa.ListArray.from_arrays(pa.array(tag_ends), one_of(_TAGS, int(tag_ends[-1]))),
            pa.MapArray.from_arrays(each, pa.repeat("page", ids.size), one_of(_TAGS, ids.size)),
            *(pa.array(random.integers(0, 100, ids.size).astype(np.float32)) for _ in range(8)),
            pa.repeat(pa.scalar(day), ids.size),
            pa.array(_REGIONS).take(pa.array(ids // 64 % len(_REGIONS))),
        ]
        yield pa.table(columns, schema=_EVENTS)


# -- passages: a Lance table, of small fragments with embeddings and an index ----------------------------------------

_DIMENSIONS = 8
_PASSAGES = pa.schema(
    [
        ("passage_id", pa.int64()),
        ("document", pa.int32()),
        ("text", pa.string()),
        ("embedding", pa.list_(pa.float32(), _DIMENSIONS)),
    ]
)
_IMPORTS = 6
_PER_DOCUMENT = 40
# As _NO_RETENTION.
_NO_CLEANUP_AGE = {"lance.auto_cleanup.older_than": "0s"}


def _build_passages(place: str, rows: int) -> None:
    """Imports of small fragments; documents are withdrawn, and duplicates found."""
    lance = library()
    imports = np.array_split(np.arange(rows), _IMPORTS)
    dataset = lance.write_dataset(_passages(imports[0]), place)
    dataset.update_config(_NO_CLEANUP_AGE)
    for ids in imports[1:]:
        dataset = lance.write_dataset(_passages(ids), place, mode="append")
    dataset.create_scalar_index("passage_id", "BTREE")
    dataset.delete("document % 5 = 0")
    dataset.delete("passage_id % 16 = 7")


def _use_passages(place: str) -> None:
    library().dataset(place).delete("document % 5 = 1")


def _passages(ids: _Numbers) -> pa.Table:
    random = np.random.default_rng([_SEED, int(ids[0])])
    numbers = pa.array(ids)
    values = pa.array(random.random(ids.size * _DIMENSIONS, dtype=np.float32))
    columns = [
        numbers,
        pa.array((ids // _PER_DOCUMENT).astype(np.int32)),
        pc.binary_join_element_wise("passage", numbers.cast(pa.string()), " "),
        pa.FixedSizeListArray.from_arrays(values, _DIMENSIONS),
    ]
    return pa.table(columns, schema=_PASSAGES)


# -- visits: a Paimon append table, by shop, of small files as a stream leaves them ----------------------------------

_VISITS = {"visit_id": "BIGINT", "page": "STRING", "seconds": "INT", "shop": "STRING"}
_SHOPS = ("graz", "linz", "wien")
_VISIT_FILES = 4
# As _NO_RETENTION; of snapshots Paimon keeps ten.
_NO_TIME_RETAINED = {"snapshot.time-retained": "0 ms", "snapshot.num-retained.min": "1"}


def _build_visits(place: str, rows: int) -> None:
    """Each shop's visits in small files; bots are taken out, then a customer's visits."""
    builder = PaimonBuilder(place)
    builder.create(_VISITS, ["shop"], _NO_TIME_RETAINED)
    for shop, ids in _in_turn(_SHOPS, rows, _VISIT_FILES):
        builder.append(_visits(ids, shop), [shop])
    builder.delete(lambda batch: _every(batch["visit_id"], 7))
    builder.delete(lambda batch: pc.equal(batch["seconds"], 100))


def _use_visits(place: str) -> None:
    PaimonBuilder(place).delete(lambda batch: pc.equal(pc.bit_wise_and(batch["visit_id"], 7), 1))


def _visits(ids: _Numbers, shop: str) -> pa.Table:
    random = np.random.default_rng([_SEED, int(ids[0])])
    pages = ("start", "search", "basket", "pay")
    columns = [
        pa.array(ids),
        pa.array(pages).take(pa.array(random.integers(0, len(pages), ids.size))),
        pa.array(random.integers(1, 600, ids.size, dtype=np.int32)),
        pa.repeat(shop, ids.size),
    ]
    return pa.table(columns, names=list(_VISITS))


# -- parcels: an Iceberg table, by carrier, of files whose deletion vectors share Puffin files ------------------------

_PARCELS = {"parcel_id": "long", "weight": "double", "note": "string", "carrier": "string"}
_CARRIERS = ("post", "courier")
_PARCEL_FILES = 5
# As _NO_RETENTION.
_NO_SNAPSHOT_AGE = {"history.expire.max-snapshot-age-ms": "0"}


def _build_parcels(place: str, rows: int) -> None:
    """Each carrier's parcels in small files; delivered ones go, then those that were lost."""
    builder = IcebergBuilder(place)
    builder.create(_PARCELS, ["carrier"], _NO_SNAPSHOT_AGE)
    for carrier, ids in _in_turn(_CARRIERS, rows, _PARCEL_FILES):
        builder.append(_parcels(ids, carrier), [carrier])
    builder.delete(lambda batch: _every(batch["parcel_id"], 3))
    builder.delete(lambda batch: pc.less(batch["weight"], 1.0))


def _use_parcels(place: str) -> None:
    IcebergBuilder(place).delete(lambda batch: pc.equal(pc.bit_wise_and(batch["parcel_id"], 7), 1))


def _parcels(ids: _Numbers, carrier: str) -> pa.Table:
    random = np.random.default_rng([_SEED, int(ids[0])])
    columns = [
        pa.array(ids),
        pa.array(random.integers(1, 3000, ids.size) / 100),
        pa.array(_NOTES).take(pa.array(random.integers(0, len(_NOTES), ids.size))),
        pa.repeat(carrier, ids.size),
    ]
    return pa.table(columns, names=list(_PARCELS))


# -- in common -------------------------------------------------------------------------------------------------------


def _days(count: int) -> list[date]:
    """The last days, oldest first, today among them."""
    today = datetime.now(UTC).date()
    return [today - timedelta(days=back) for back in reversed(range(count))]


def _by_day(rows: int, count: int) -> Iterator[tuple[date, _Numbers]]:
    """Each of the last days with ids of its own."""
    return zip(_days(count), np.array_split(np.arange(rows), count), strict=True)


def _in_turn(partitions: tuple[str, ...], rows: int, files: int) -> Iterator[tuple[str, _Numbers]]:
    """Each partition with ids of its own, ``files`` times."""
    return zip(partitions * files, np.array_split(np.arange(rows), len(partitions) * files), strict=True)


def _every(ids: pa.Array, bits: int) -> pa.BooleanArray:
    """One id of every ``bits + 1``, a power of two."""
    return pc.equal(pc.bit_wise_and(ids, bits), 0)


# By the names that sensors/tables.yaml gives them.
DEMO_TABLES: Final[Mapping[str, DemoTable]] = {
    "demo/orders": DemoTable(0.6, _build_orders, _use_orders, "a quarter of the last four days deleted"),
    "demo/customers": DemoTable(0.2, _build_customers, _use_customers, "as many customers again, in 12 small files"),
    "demo/events": DemoTable(0.12, _build_events, _use_events, "a sixteenth of us deleted, today and yesterday"),
    "demo/passages": DemoTable(0.08, _build_passages, _use_passages, "a fifth of the documents deleted", library),
    "demo/visits": DemoTable(0.08, _build_visits, _use_visits, "an eighth of the visits deleted", avro.library),
    "demo/parcels": DemoTable(0.08, _build_parcels, _use_parcels, "an eighth of the parcels deleted", avro.library),
}
