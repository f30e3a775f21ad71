"""Mistakes that the code once made when it read conditions, keys and files, made again in place of what is right."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
from answers import QUOTED, USUAL, Session

from dv_maintenance.dml import catalyst, delete, keys, rows, session_time
from dv_maintenance.engine.parquet import reader
from dv_maintenance.tables.delta.rows import skipping
from dv_maintenance.tables.predicate import Compare, Predicate

if TYPE_CHECKING:
    import pyarrow as pa
    import pytest
    from answers import Answers
    from pyspark.sql import DataFrame, SparkSession

    from dv_maintenance.tables.model import Snapshot

__all__ = ["MISTAKES", "STRING_VIEWS", "guessed_keys", "string_views_of_arrow"]

Patch = Callable[["pytest.MonkeyPatch", "Answers"], None]


@dataclass(frozen=True)
class Mistake:
    """A DELETE's. ``table``: where it shows; ``leaves``: those that are asked about; ``about``: what conditions have in
    them; ``sessions``: those that ask.
    """

    table: str
    leaves: tuple[str, ...]
    patch: Patch
    about: str = ""
    sessions: tuple[Session, ...] = USUAL[:2]


def _char_as_it_is_stored(patch: pytest.MonkeyPatch, _: Answers) -> None:
    for module in (catalyst, delete, rows):
        patch.setattr(module, "as_in_catalog", lambda stored, schema: stored)


def _in_another_session(setting: str, value: str) -> Patch:
    """What is skipped is decided in another session than the rows are found in."""

    def make(patch: pytest.MonkeyPatch, answers: Answers) -> None:
        right = delete.shape

        def wrong(_: SparkSession, schema: pa.Schema) -> DataFrame:
            other = answers.spark.newSession()
            other.conf.set(setting, value)
            return right(other, schema)

        patch.setattr(delete, "shape", wrong)

    return make


def _exact_numbers(patch: pytest.MonkeyPatch, _: Answers) -> None:
    """A literal is compared with bounds as it is written, whatever the session casts it to."""
    right, check, asked = delete.demanded_by, delete.check_condition, list[str]()

    def remembered(rows: DataFrame, snapshot: Snapshot, sql: str, *, subqueries: bool = False) -> bool:
        asked.append(sql)
        return check(rows, snapshot, sql, subqueries=subqueries)

    def wrong(rows: DataFrame) -> Predicate:
        found = re.fullmatch(r"`(\w+)` = (\d+)", asked[-1])
        return Compare((found[1],), "=", float(found[2])) if found else right(rows)

    patch.setattr(delete, "check_condition", remembered)
    patch.setattr(delete, "demanded_by", wrong)


def _times_in_utc(patch: pytest.MonkeyPatch, answers: Answers) -> None:
    right = session_time._instants
    utc = answers.spark.newSession()
    utc.conf.set("spark.sql.session.timeZone", "UTC")
    patch.setattr(session_time, "_instants", lambda session, texts: right(utc, texts))


def _bounds_with_nan(patch: pytest.MonkeyPatch, _: Answers) -> None:
    right = skipping.stats_bounds
    patch.setattr(skipping, "stats_bounds", lambda stats, column: replace(right(stats, column), nans=False))


MISTAKES: Mapping[str, Mistake] = {
    "CHAR partitions compared as stored": Mistake("by char and decimal", ("`pc`",), _char_as_it_is_stored),
    "CHAR columns compared as stored": Mistake("current", ("`c4`",), _char_as_it_is_stored),
    "files skipped in another session's zone": Mistake(
        "few values a file", ("`ts`",), _in_another_session("spark.sql.session.timeZone", "UTC"), "< TIMESTAMP'"
    ),
    "files skipped by numbers that no FLOAT has": Mistake(
        "few values a file", ("`f32`",), _exact_numbers, "= 16777217"
    ),
    "names in double quotes taken for text": Mistake(
        "few values a file",
        ("`i32`",),
        _in_another_session("spark.sql.ansi.doubleQuotedIdentifiers", "false"),
        sessions=QUOTED,
    ),
    "times of partitions taken for UTC": Mistake("by time without a zone", ("`pts`",), _times_in_utc),
    "bounds that leave NaN out believed": Mistake("deltalake", ("`f64`", "`inf`"), _bounds_with_nan),
}


STRING_VIEWS = "deltalake, changed"
"""A table with views in the Arrow schemas of its footers."""


def string_views_of_arrow(patch: pytest.MonkeyPatch) -> None:
    """The schema that Arrow left in a footer is believed."""

    def wrong(file: Any, footer: Any = None, **options: Any) -> pq.ParquetFile:
        return pq.ParquetFile(file, **options)

    patch.setattr(reader, "open_parquet_file", wrong)


def guessed_keys(patch: pytest.MonkeyPatch) -> None:
    """The types of keys are guessed from their text."""

    def wrong(session: SparkSession, files: Any, columns: Any, options: Any) -> keys.Keys:
        guessed = session.read.csv([file.uri for file in files], header=True, inferSchema=True)
        found = guessed.select([guessed[column.name].alias(f"key{at}") for at, column in enumerate(columns)])
        count = found.count()
        return keys.Keys(found, keys.KeyCounts(count, 0, count), found)

    patch.setattr(delete, "keys_of_files", wrong)
