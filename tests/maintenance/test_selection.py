"""Which partitions a filter chooses, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from dv_maintenance.errors import UsageError
from dv_maintenance.maintenance.planning.selection import Selection, refuse_missing, select
from dv_maintenance.tables.model import FILES_SCHEMA, Snapshot, parse_partition
from dv_maintenance.tables.partition_spec import by_columns

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("country", pa.string())])
LIVE = ("day=2026-11-01/country=de", "day=2026-11-02/country=de", "day=2026-11-02/country=a%2Fb")


def snapshot(partitions: Sequence[str] = LIVE) -> Snapshot:
    rows = [
        {"path": str(at), "partition": name, "size": 1, "deleted_rows": 0, "modified": 0}
        for at, name in enumerate(partitions)
    ]
    return Snapshot(
        table="memory://t",
        format="delta",
        version=3,
        timestamp=0,
        schema=SCHEMA,
        specs=by_columns("day", "country"),
        properties={},
        files=pa.Table.from_pylist(rows, FILES_SCHEMA),
    )


def chosen(*names: str, live: Sequence[str] = LIVE) -> Selection:
    return select(snapshot(live), live, [parse_partition(name) for name in names])


def test_filters_are_written_as_the_table_writes_them() -> None:
    found = chosen("Country=de/DAY=2026-11-1")
    assert found.fits == (True, False, False)
    assert found.filters == ({"day": "2026-11-01", "country": "de"},)
    assert found.missing == ()


def test_a_filter_may_name_some_columns() -> None:
    assert chosen("day=2026-11-02").fits == (False, True, True)
    assert chosen("country=a%2Fb", "day=2026-11-01").fits == (True, False, True)


def test_an_exact_name_chooses_only_its_own_partition() -> None:
    live = ("day=2026-11-01", "day=2026-11-1")
    assert chosen("day=2026-11-1", live=live).fits == (False, True)
    assert chosen("day=+2026-11-01", live=live).fits == (True, True)
    assert len(chosen("day=+2026-11-01", live=live).filters) == 2


def test_null_is_not_the_text_of_that_name() -> None:
    live = ("country=__HIVE_DEFAULT_PARTITION__", "country=%5F_HIVE_DEFAULT_PARTITION__")
    assert chosen(live[0], live=live).fits == (True, False)
    assert chosen(live[1], live=live).fits == (False, True)


def test_a_partition_without_a_live_file() -> None:
    found = chosen("day=2030-01-01", "day=2026-11-01")
    assert found.missing == ("day=2030-01-01",)
    assert found.fits == (True, False, False)
    with pytest.raises(UsageError, match="no live file is in day=2030-01-01") as refused:
        refuse_missing(snapshot(), LIVE, found.missing)
    assert "from day=2026-11-01 to day=2026-11-02" in str(refused.value)
    assert "missing_ok=True" in str(refused.value)
    refuse_missing(snapshot(), LIVE, [])


def test_the_nearest_name_is_suggested_for_text_only() -> None:
    with pytest.raises(UsageError, match=r"did you mean day=2026-11-02/country=de\?"):
        refuse_missing(snapshot(), LIVE, ["day=2026-11-02/country=dee"])
    with pytest.raises(UsageError, match="the table has no live file"):
        refuse_missing(snapshot([]), [], ["day=2026-11-02"])


def test_a_value_of_another_type_names_column_type_value_and_example() -> None:
    with pytest.raises(UsageError) as refused:
        chosen("day=2026-13-45")
    assert str(refused.value) == (
        "memory://t at version 3: '2026-13-45' is not a value of partition column 'day', of type DATE. "
        "Next: write it like day=2026-11-02"
    )


def test_an_unknown_column_names_the_partition_columns() -> None:
    with pytest.raises(UsageError, match=r"'shop' is not a partition column.*use day, country"):
        chosen("shop=1")


def test_what_a_writer_spelled_oddly_still_has_its_name() -> None:
    live = ("day=2026-11-01 noon", "day=")
    assert chosen("day=2026-11-01 noon", live=live).fits == (True, False)
    assert chosen("day=", live=live).fits == (False, True)
