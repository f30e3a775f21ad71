"""What Spark answers to a battery of queries: the same before and after maintenance, or maintenance was wrong.

Rows are fingerprinted inside the JVM, bit by bit, so a query costs a plan and a small job. The truth is what the
filter says of each row when nothing is skipped; a table's answer comes from its files by way of row group statistics,
page indices, dictionaries, calendars and zones, as it does for everybody who asks.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from support.sessions import CHEAP

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "ALL",
    "PAIRS",
    "QUOTED",
    "READER",
    "USUAL",
    "Answers",
    "Difference",
    "Session",
    "Verdict",
    "spread",
]

ZONES = ("UTC", "America/New_York", "Asia/Kolkata", "Europe/Amsterdam")
REBASE = ("CORRECTED", "EXCEPTION", "LEGACY")


@dataclass(frozen=True, order=True)
class Session:
    """How somebody has set their session. ``quoted``: what stands in double quotes is a name, and no text."""

    zone: str
    ansi: bool
    rebase: str
    vectorized: bool
    quoted: bool = False

    def settings(self) -> dict[str, str]:
        return {
            "spark.sql.session.timeZone": self.zone,
            "spark.sql.ansi.enabled": str(self.ansi).lower(),
            "spark.sql.ansi.doubleQuotedIdentifiers": str(self.quoted).lower(),
            "spark.sql.parquet.datetimeRebaseModeInRead": self.rebase,
            "spark.sql.parquet.int96RebaseModeInRead": self.rebase,
            "spark.sql.parquet.enableVectorizedReader": str(self.vectorized).lower(),
            "parquet.filter.columnindex.enabled": "true",
            **CHEAP,
        }

    def __str__(self) -> str:
        reader = "vectors" if self.vectorized else "rows"
        names = ", quoted names" if self.quoted else ""
        return f"{self.zone}, {'ANSI' if self.ansi else 'not ANSI'}, {self.rebase}, {reader}{names}"


ALL = tuple(Session(*each) for each in product(ZONES, (True, False), REBASE, (True, False)))
# Any two settings meet in one of them: an orthogonal array of zones and rebase modes, the switches spread over it.
PAIRS = tuple(
    Session(zone, (z + r) % 2 == 0, rebase, (z // 2 + r) % 2 == 0)
    for z, zone in enumerate(ZONES)
    for r, rebase in enumerate(REBASE)
)
USUAL = (
    Session("America/New_York", ansi=True, rebase="EXCEPTION", vectorized=True),
    Session("Europe/Amsterdam", ansi=False, rebase="LEGACY", vectorized=True),
    Session("UTC", ansi=True, rebase="CORRECTED", vectorized=False),
    Session("Asia/Kolkata", ansi=False, rebase="EXCEPTION", vectorized=False),
)
QUOTED = (Session("UTC", ansi=True, rebase="CORRECTED", vectorized=True, quoted=True),)

READER = Session("UTC", ansi=False, rebase="CORRECTED", vectorized=False)
"""Reads what others refuse."""


@dataclass(frozen=True)
class Difference:
    """``was``: what the table of before answers to the very query, ``true``: what it would without skipping."""

    session: Session
    condition: str
    true: str
    was: str
    now: str

    def __str__(self) -> str:
        was = "" if self.was == self.true else f" (asked there: {self.was})"
        return f"[{self.session}] WHERE {self.condition}: {self.true}{was} -> {self.now}"


@dataclass
class Verdict:
    """``mended``: queries that failed, left rows out or misread a file before, and are right now."""

    asked: int = 0
    differences: list[Difference] = field(default_factory=list)
    mended: int = 0
    as_wrong_as_before: int = 0

    def __iadd__(self, other: Verdict) -> Self:
        self.asked += other.asked
        self.differences += other.differences
        self.mended += other.mended
        self.as_wrong_as_before += other.as_wrong_as_before
        return self

    def __str__(self) -> str:
        counts = Counter(f"{_sort(each.true)} -> {_sort(each.now)}" for each in self.differences)
        lines = [f"{len(self.differences)} of {self.asked} answers differ: {dict(counts)}"]
        return "\n".join(lines + [str(each) for each in self.differences[:12]])


def _sort(answer: str) -> str:
    return answer if answer.startswith("fails") else "rows"


@cache
def _judge(gateway: Any) -> Any:
    """One for each JVM: py4j remembers methods by the names of classes, whoever loaded them."""
    jvm = gateway.jvm
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.setTargetVersion(8)
    compiler.setSourceVersion(8)
    compiler.cook((Path(__file__).parent / "SparkAnswers.java").read_text())
    none = gateway.new_array(jvm.java.lang.Class, 0), gateway.new_array(jvm.java.lang.Object, 0)
    return compiler.getClassLoader().loadClass("SparkAnswers").getConstructor(none[0]).newInstance(none[1])


class Answers:
    """Asks Spark, in sessions of its own: the settings of the one it is made from stay as they are."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self._gateway = spark._sc._gateway
        self._judge = _judge(self._gateway)
        self._strings = self._gateway.jvm.java.lang.String
        self._sessions: dict[Session, Any] = {}

    def view_files(self, view: str, files: Sequence[str], sessions: Iterable[Session]) -> None:
        """A view of Parquet files in each of these sessions, read by its settings."""
        for each in sessions:
            self.session(each).read.parquet(*files).createOrReplaceTempView(view)

    def session(self, wanted: Session) -> Any:
        if wanted not in self._sessions:
            made = self.spark.newSession()
            for key, value in wanted.settings().items():
                made.conf.set(key, value)
            self._sessions[wanted] = made
        return self._sessions[wanted]

    def ask(self, session: Session, queries: Sequence[str], source: str | None = None, threads: int = 3) -> list[str]:
        """``source``: what can stand in FROM; ``queries`` are conditions on its rows then."""
        array = self._gateway.new_array(self._strings, len(queries))
        for number, query in enumerate(queries):
            array[number] = query
        rows = None if source is None else f"SELECT * FROM {source}"
        return list(self._judge.answers(self.session(session)._jsparkSession, rows, array, threads))

    def true(self, session: Session, source: str, conditions: Sequence[str]) -> list[str]:
        """What each condition says of every row: Spark itself, when it skips by dictionaries, misses -0.0 for 0.0."""
        held = self._judge.hold(self.session(session)._jsparkSession, f"SELECT * FROM {source}", "truth")
        if held.startswith("fails"):
            return [held] * len(conditions)
        return self.ask(session, conditions, "truth")

    def compare(
        self,
        before: str,
        after: str,
        asked: Iterable[tuple[Session, Sequence[str]]],
        *,
        gone: str = "FALSE",
        aside: str = "FALSE",
        skipping: bool = False,
    ) -> Verdict:
        """``before``, ``after``: what can stand in FROM. ``gone``: rows that were deleted in between; ``aside``: rows
        that were changed, and nobody asks for. ``skipping``: the log is asked for each query which files may hold its
        rows (seven times as slow).
        """
        total = Verdict()
        for session, conditions in asked:
            total += self._compare(session, before, after, list(conditions), gone, aside, skipping)
        return total

    def totals(self, session: Session, before: str, after: str, selections: Sequence[str]) -> Verdict:
        """Aggregates of whole tables, which delta-spark answers from the log alone where it can."""
        was, found = (
            self.ask(session, [f"SELECT {each} FROM {table}" for each in selections]) for table in (before, after)
        )
        self._judge.hold(self.session(session)._jsparkSession, f"SELECT * FROM {before}", "truth")
        true = self.ask(session, [f"SELECT {each} FROM truth" for each in selections])
        verdict = Verdict(asked=len(selections))
        for selection, right, then, now in zip(selections, true, was, found, strict=True):
            if now not in {then, right}:
                verdict.differences.append(Difference(session, f"TRUE: {selection}", right, then, now))
        return verdict

    def _compare(
        self,
        session: Session,
        before: str,
        after: str,
        conditions: list[str],
        gone: str,
        aside: str,
        skipping: bool,
    ) -> Verdict:
        java = self.session(session)._jsparkSession
        asked, conditions = conditions, [_and_not(aside, each) for each in conditions]
        rows = before if gone == "FALSE" else f"(SELECT * FROM {before} WHERE {_and_not(gone, 'TRUE')})"
        true = self.true(session, rows, conditions)
        unread = bool(true) and true[0].startswith("fails") and len(set(true)) == 1
        source = after
        if not skipping and not self._judge.pin(java, f"SELECT * FROM {after}", "pinned"):
            source = "pinned"
        found = self.ask(session, conditions, source)
        doubtful = [number for number, answers in enumerate(zip(true, found, strict=True)) if answers[0] != answers[1]]
        was = self.ask(session, [_and_not(gone, conditions[number]) for number in doubtful], before)
        # What a session that reads every row finds.
        readable = self.true(replace(session, rebase="CORRECTED"), rows, conditions) if unread else true
        rows_right: list[str] = []
        verdict = Verdict(asked=len(asked))
        for number, then in zip(doubtful, was, strict=True):
            now = found[number]
            if session.vectorized and then != now and not rows_right:
                # Spark's vectorized reader misreads a DELTA_BYTE_ARRAY column chunk of many small pages; its reader of
                # rows, pyarrow, DuckDB and polars agree on the values.
                rows_right = self.true(replace(session, vectorized=False), rows, conditions)
            if then == now:
                verdict.as_wrong_as_before += not unread
            elif not now.startswith("fails") and (
                now in rows_right[number : number + 1] or (unread and then.startswith("fails"))
            ):
                verdict.mended += 1
            elif _rows(then) < _rows(now) <= _rows(readable[number]):
                # Files that others wrote are skipped still, and those that are new here are not.
                verdict.mended += 1
            else:
                verdict.differences.append(Difference(session, asked[number], true[number], then, now))
        return verdict


def _rows(answer: str) -> float:
    """How many there are; of a failure nothing is known."""
    return math.nan if answer.startswith("fails") else int(answer.split(maxsplit=1)[0])


def _and_not(rows: str, condition: str) -> str:
    return condition if rows == "FALSE" else f"NOT coalesce({rows}, FALSE) AND ({condition})"


def spread(conditions: Sequence[str], sessions: Sequence[Session], each: int, seed: int = 0) -> list[Any]:
    """Every condition in ``each`` of the sessions, all sessions about as often."""
    shuffled = list(conditions)
    random.Random(seed).shuffle(shuffled)
    per_session: dict[Session, list[str]] = {session: [] for session in sessions}
    for number, condition in enumerate(shuffled):
        for more in range(each):
            per_session[sessions[(number + more * (len(sessions) // each)) % len(sessions)]].append(condition)
    return list(per_session.items())
