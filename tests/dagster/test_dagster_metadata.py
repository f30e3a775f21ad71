"""The rendering of reports in Dagster: pictures, reasons, columns, numbers."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree as ET

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dv_maintenance.dagster import metadata
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.maintenance.execution.apply import apply
from dv_maintenance.maintenance.execution.report import StepReport
from dv_maintenance.maintenance.health import Counts, Health, PartitionHealth, health, total
from dv_maintenance.maintenance.planning.plan import build_plan
from dv_maintenance.service.chart import fits_inline
from dv_maintenance.service.outcome import Outcome
from dv_maintenance.service.reports.files import of_manifest, of_vacuum
from dv_maintenance.service.reports.health import columns_of, of_health
from dv_maintenance.service.reports.work import of_partition, of_run
from dv_maintenance.tables import open_table
from dv_maintenance.tables.model import ExpiredFile, ExpiredFiles, Snapshot
from dv_maintenance.tables.partition_spec import by_columns
from dv_maintenance.tables.reports import ManifestReport, VacuumReport
from dv_maintenance.testing.delta_builder import DeltaBuilder

SVG = "{http://www.w3.org/2000/svg}"
PICTURE = "deleted_ratio_by_partition"


def counts(deleted: int, physical: int | None = 100) -> Counts:
    return Counts(
        files=2,
        files_with_dv=1 if deleted else 0,
        files_with_unknown_rows=0 if physical is not None else 1,
        physical_rows=physical,
        deleted_rows=deleted,
        live_rows=None if physical is None else physical - deleted,
        deleted_ratio=None if physical is None else deleted / physical,
        size_bytes=2048,
    )


def state(*partitions: tuple[dict[str, str | None], Counts]) -> Health:
    each = tuple(PartitionHealth(*partition) for partition in partitions)
    return Health(7, 0, total(one.counts for one in each), each, (), table="t", format="delta")


def by_day(**deleted: int) -> Health:
    return state(*(({"day": day.strip("d").replace("_", "-")}, counts(rows)) for day, rows in deleted.items()))


def step(partition: str, purged: int, reason: str = "too many deleted rows") -> StepReport:
    zeros = dict.fromkeys((each.name for each in fields(StepReport)), 0)
    known: dict[str, Any] = {"action": "rewrite", "partition": partition, "reason": reason, "rows_purged": purged}
    return StepReport(**{**zeros, **known})


def texts(outcome: Outcome, **options: Any) -> dict[str, Any]:
    """Entries as Dagster stores them: plain numbers as they are."""
    entries = metadata.render(outcome, **options)
    return {name: getattr(value, "value", value) for name, value in entries.items()}


def drawn(markdown: str) -> ET.Element:
    """The SVG of the only image, as a browser parses it."""
    (uri,) = re.findall(r"^!\[[^\]]*\]\(<data:image/svg\+xml,([^<>\n]*)>\)", markdown)
    return ET.fromstring(unquote(uri))


def lines(markdown: str) -> list[str]:
    return "".join(drawn(markdown).itertext()).split("\n")


def _lengths(markdown: str) -> list[list[int]]:
    """Of the bars, path by path."""
    return [
        [int(bar) for bar in re.findall(r"h(\d+)", path.attrib["d"])] for path in drawn(markdown).iter(f"{SVG}path")
    ]


# -- the table as it is ----------------------------------------------------------------------------------------------


def test_the_worst_partitions_come_first() -> None:
    entries = texts(of_health(state(*(({"shop": name}, counts(rows)) for name, rows in SHOPS.items()))))
    assert lines(entries[PICTURE]) == ["60.0% c", "30.0% null", "10.0% a"]
    assert entries[PICTURE].endswith("Share of rows that are deleted, by `shop`. 1 partition without any.")
    table = entries["worst_partitions"].splitlines()
    assert table[2] == "| `shop=c` | 60.00% | 60 | 1/2 |"
    assert table[3].startswith("| `shop=__HIVE_DEFAULT_PARTITION__` |")
    assert next(iter(entries)) == PICTURE


SHOPS: dict[str | None, int] = {"a": 10, "b": 0, "c": 60, None: 30}


def test_days_come_in_order_of_time() -> None:
    entries = texts(of_health(by_day(d2026_01_09=10, d2026_01_10=50, d2026_01_11=0, d2026_01_12=30)))
    assert [line.split()[-1] for line in lines(entries[PICTURE])] == ["2026-01-09", "2026-01-10", "2026-01-12"]
    months = [({"year": "2026", "month": month}, counts(rows)) for month, rows in (("10", 40), ("9", 20))]
    assert [line.split()[-1] for line in lines(texts(of_health(state(*months)))[PICTURE])] == [
        "2026/9",
        "2026/10",
    ]


def test_a_picture_is_seen_without_a_click_and_names_what_it_leaves_out() -> None:
    shops = [({"shop": f"<&>{number:03} " * 30}, counts(1 + number % 99)) for number in range(5000)]
    entries = texts(of_health(state(*shops)))
    assert fits_inline(entries[PICTURE])
    shown = len(lines(entries[PICTURE]))
    assert 1 <= shown < 24
    assert f"The {shown} worst of 5,000." in entries[PICTURE]
    assert len(str(entries)) < 10_000, "the event log keeps it forever"
    assert entries["worst_partitions"].endswith("4,950 more are not shown.")
    plain = [({"day": f"2026-01-{day:02}"}, counts(day)) for day in range(1, 32)]
    assert len(lines(texts(of_health(state(*plain)))[PICTURE])) > 12


def test_unknown_shares_are_named_but_not_drawn() -> None:
    entries = texts(of_health(state(({"shop": "a"}, counts(5, None)), ({"shop": "b"}, counts(5)))))
    assert lines(entries[PICTURE]) == ["5.0% b"]
    assert entries[PICTURE].endswith("by `shop`. 1 with an unknown share.")
    assert "| `shop=a` | unknown | 5 |" in entries["worst_partitions"]
    assert "deleted_ratio" not in entries


@pytest.mark.parametrize(
    "clean", [by_day(d2026_01_01=0, d2026_01_02=0), by_day(d2026_01_01=50), state(({}, counts(50)))], ids=str
)
def test_nothing_to_compare_is_no_picture(clean: Health) -> None:
    assert not {PICTURE, "worst_partitions"} & set(texts(of_health(clean)))


def test_numbers_are_rounded_and_the_header_gets_its_own() -> None:
    entries = texts(of_health(state(({}, counts(1, 3)))))
    assert (entries["deleted_ratio"], entries["dagster/row_count"]) == (0.3333, 2)
    assert entries["dagster/size_bytes"] == 2048
    assert "size_bytes" not in entries, "once is enough"


# -- runs ------------------------------------------------------------------------------------------------------------


def test_a_run_shows_before_and_after(tmp_path: Any) -> None:
    path = str(tmp_path / "t")
    builder = DeltaBuilder(path).create(pa.schema([("id", pa.int64()), ("shop", pa.string())]), partition_by=["shop"])
    builder.append(pa.table({"id": range(300), "shop": ["a", "b", "c"] * 100}))
    builder.delete(lambda rows: pc.and_(pc.less(rows["id"], 150), pc.not_equal(rows["shop"], "c")))
    table = open_table(path)
    plan = build_plan(table.snapshot())
    report = apply(table, LocalEngine(), plan)
    found = of_run(plan, report, health(table.snapshot()), per_partition=False)
    entries = texts(found)
    assert next(iter(entries)) == "reason"
    assert fits_inline(entries["reason"])
    assert "2 steps: 1 file with more than 5 % of the rows deleted" in entries["reason"]
    assert "2 steps, reading" in entries["reason"]
    assert lines(entries[PICTURE]) == ["50.0% → 0.0% a", "50.0% → 0.0% b"]
    assert (entries["deleted_ratio_before"], entries["deleted_ratio"]) == (0.3333, 0)
    assert entries["bytes_in"] > entries["bytes_out"] > 0
    assert [record.data["rows_purged"] for record in entries["plan"].records] == [50, 50]
    assert entries["explanation"].startswith("**Maintenance of ")


def test_a_partition_tells_its_share_before_and_groups_its_reasons() -> None:
    steps = [step("day=1", 20), step("day=1", 10), step("day=1", 0, "small")]
    entries = texts(of_partition(steps, counts(0, 70)))
    assert (entries["deleted_ratio_before"], entries["deleted_ratio"]) == (0.3, 0)
    assert entries["reason"] == "- 2 steps: too many deleted rows\n- small"
    assert "deleted_ratio_before" not in texts(of_partition(steps, None))


def test_long_reasons_are_cut_so_that_they_are_seen() -> None:
    reasons = [step("day=1", 1, f"{number} " + "because " * 20) for number in range(9)]
    text = texts(of_partition(reasons, None))["reason"]
    assert fits_inline(text)
    assert re.search(r"- and \d more$", text)


def test_a_vacuum_says_what_went() -> None:
    files = tuple(ExpiredFile(f"f{at}", kind, 512, 0) for at, kind in enumerate(("data", "data", "dv", "data")))
    report = VacuumReport(ExpiredFiles(7, 0, 0, files, {"in the current version": 5}), 4, False, 7, 9, table="t")
    entries = texts(of_vacuum(report))
    assert entries["reason"] == "4 expired files (2 KiB) were deleted: 3 data, 1 DV."
    assert (entries["files_deleted"], entries["bytes_deleted"]) == (4, 2048)
    assert entries["kept"] == "5 files: in the current version"
    nothing = VacuumReport(ExpiredFiles(7, 0, 0, ()), 0, False, 7, 7, table="t")
    assert texts(of_vacuum(nothing))["reason"] == "No file has expired."


def test_manifests_say_what_they_list() -> None:
    report = ManifestReport(7, tuple(f"m{number}" for number in range(60)), 80, purged=True)
    entries = texts(of_manifest(report))
    assert entries["reason"] == (
        "60 manifests list the 80 data files of version 7. Deletion vectors were purged first."
    )
    assert entries["paths"].endswith("- and 10 more")


# -- columns ---------------------------------------------------------------------------------------------------------


def columns(*fields: pa.Field, partitions: tuple[str, ...] = ()) -> dict[str, Any]:
    snapshot = Snapshot(
        table="t",
        format="delta",
        version=0,
        timestamp=0,
        schema=pa.schema(fields),
        specs=by_columns(*partitions),
        properties={},
        files=pa.table({}),
    )
    return {each.name: each for each in metadata.of_columns(columns_of(snapshot))["dagster/column_schema"].columns}


def test_columns_have_their_comments() -> None:
    found = columns(
        pa.field("id", pa.int64(), nullable=False, metadata={"comment": "Order number."}),
        pa.field("day", pa.date32(), metadata={"comment": "In UTC."}),
        pa.field("shop", pa.string()),
        pa.field("note", pa.string(), metadata={"comment": "x" * 5000}),
        partitions=("day", "shop"),
    )
    assert (found["id"].description, found["id"].constraints.nullable) == ("Order number.", False)
    assert found["day"].description == "In UTC. Partition column."
    assert found["shop"].description == "Partition column."
    assert len(found["note"].description) == 1000


def test_long_types_show_their_outer_levels() -> None:
    place = pa.struct([("lat", pa.float64()), ("lon", pa.float64()), ("accuracy_in_metres", pa.float32())])
    address = pa.struct([("street", pa.string()), ("city", pa.string()), ("place", place)])
    found = columns(
        pa.field("short", pa.struct([("a", pa.int32())])),
        pa.field("long", pa.struct([("name", pa.string()), ("address", address)])),
        pa.field("items", pa.list_(pa.field("element", pa.map_(pa.string(), address)))),
        pa.field("wide", pa.struct([(f"column_{number}", pa.string()) for number in range(99)])),
    )
    assert found["short"].type == "struct<a: int32>"
    assert found["long"].type == "struct<name: string, address: struct<…>>"
    assert found["items"].type == "list<map<string, struct<…>>>"
    assert found["wide"].type == "struct<…>"
