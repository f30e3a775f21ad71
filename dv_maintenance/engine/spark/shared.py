"""The one classic Spark session of a process, which engines share with catalogs that only a session can commit to.

A catalog says what its session needs when a table in it is opened. Whoever starts the session then, an engine or the
first commit, starts it with that. Nothing starts before it is needed, and there is never a second one.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import RLock
from typing import TYPE_CHECKING, Any, Final

from dv_maintenance.errors import DvMaintenanceError, RefusedError, UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dv_maintenance.engine import Engine

_CATALOG: Final = "spark.sql.catalog."
# Of two values, both hold.
_LISTS: Final = ("spark.jars", "spark.jars.packages", "spark.jars.repositories", "spark.sql.extensions")
_CONNECT: Final = "only a session with its own JVM commits to this catalog, and Spark Connect has none"


@dataclass(frozen=True, slots=True)
class Needs:
    """What a catalog's session needs.

    catalog : its name in the session.
    master : where a session starts that no engine starts; ``None``: on this machine.
    conf : Spark settings.
    """

    catalog: str
    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict, repr=False)


_lock = RLock()
_needs: dict[str, Needs] = {}
_offers: list[Callable[[], Engine]] = []
_looking: ContextVar[bool] = ContextVar("looking", default=False)
# PySpark makes another object of a session each time that it is asked for: its context tells it.
_started: list[Any] = []
_made: dict[str, tuple[Any, SparkSession]] = {}


def needed(needs: Needs) -> None:
    """Let sessions that start from now on have what a catalog needs."""
    _needs[needs.catalog] = needs


def completed(conf: Mapping[str, str]) -> dict[str, str]:
    """The settings of a session that is about to start, with what the catalogs of this process need. A catalog whose
    jars are missing is left out: only its own tables fail.
    """
    found: dict[str, str] = {}
    for needs in _needs.values():
        if not missing_jars(needs):
            found = _both(found, needs.conf)
    return _both(found, conf)


def default_master() -> str:
    """Where a session starts that nobody chose a place for: where a catalog needs it, or on this machine."""
    return next((each.master for each in _needs.values() if each.master), "local[*]")


@contextmanager
def offered(engine: Callable[[], Engine]) -> Iterator[None]:
    """If a catalog needs a session in the meantime, it is that of this engine, if that is Spark."""
    _offers.append(engine)
    try:
        yield
    finally:
        _offers.remove(engine)


@contextmanager
def only_looking() -> Iterator[None]:
    """Start no session in the meantime: :func:`session_for` refuses to."""
    token = _looking.set(True)
    try:
        yield
    finally:
        _looking.reset(token)


def session_for(needs: Needs) -> SparkSession:
    """A session that has a catalog: that of this process, or one that starts now.

    Raises
    ------
    RefusedError : none may be started for a look, or it did not start.
    UsageError : a jar that it needs is missing, or a setting.
    """
    with _lock:
        running = running_session()
        if running is None:
            if _looking.get():
                raise RefusedError(
                    f"only a Spark session can ask the catalog {needs.catalog}, and watching starts none",
                    next_step="give the catalog's spark.sql.catalog settings under 'conf' if it is one of Hive, Glue, "
                    "JDBC or REST; schedule the jobs of its tables otherwise",
                )
            if said := _said_of(missing_jars(needs)):
                raise UsageError(said, next_step=f"correct spark.jars in the conf of the catalog {needs.catalog}")
            running = _start(needs)
        return running if _has(running, needs.catalog) else _with_catalog(running, needs)


def is_only_looking() -> bool:
    """Whether no session may be started now."""
    return _looking.get()


def why_no_session(needs: Needs) -> str:
    """Why the session of this process can't commit; "" if it can, or will be able to. Starts none."""
    running = running_session()
    if running is not None:
        return _CONNECT if getattr(running, "_jvm", None) is None else ""
    engine = _offer()
    if engine is not None and str(engine.master).startswith("sc://"):
        return _CONNECT
    return _said_of(missing_jars(needs))


def running_session() -> SparkSession | None:
    """The session of this process, whoever started it; ``None`` without one."""
    spark_sql = sys.modules.get("pyspark.sql")
    if spark_sql is None:
        return None
    kind = spark_sql.SparkSession
    found: SparkSession | None = kind.getActiveSession() or getattr(kind, "_instantiatedSession", None)
    return found


def started_here() -> SparkSession | None:
    """The session that a catalog started, if it still runs: nobody else has to stop it."""
    running = running_session()
    return running if running is not None and getattr(running, "_sc", None) in _started else None


def _start(needs: Needs) -> SparkSession:
    from dv_maintenance.engine.spark.session import start_session

    engine = _offer()
    try:
        if engine is not None:
            session: SparkSession = engine.session
            return session
        session = start_session(needs.master, needs.conf)
    except DvMaintenanceError:
        raise
    except Exception as error:
        said = str(error).strip().partition("\n")[0][:200] or type(error).__name__
        raise RefusedError(
            f"no Spark session started for the catalog {needs.catalog} ({type(error).__name__}: {said})",
            next_step="check its conf: a package of spark.jars.packages must exist, and be in reach",
        ) from error
    _started[:] = [session.sparkContext]
    return session


def _offer() -> Any:
    """The Spark engine that is offered, which may not have started yet."""
    from dv_maintenance.engine.auto import AutoEngine
    from dv_maintenance.engine.spark.engine import SparkEngine

    for each in reversed(_offers):
        engine: Any = each()
        if isinstance(engine, AutoEngine):
            engine = engine.spark
        if isinstance(engine, SparkEngine):
            return engine
    return None


def _has(session: SparkSession, catalog: str) -> bool:
    return bool(session.conf.get(f"{_CATALOG}{catalog}", None))


def _with_catalog(running: SparkSession, needs: Needs) -> SparkSession:
    """Another session of the same JVM, with the catalog: the user's own stays as it is."""
    own = {key: value for key, value in needs.conf.items() if f"{key}.".startswith(f"{_CATALOG}{needs.catalog}.")}
    if not own.get(f"{_CATALOG}{needs.catalog}"):
        raise UsageError(
            f"the Spark session has no catalog {needs.catalog}",
            next_step=f"give {_CATALOG}{needs.catalog} and its settings under 'conf' of the catalog",
        )
    if getattr(running, "_jvm", None) is None:
        raise RefusedError(_CONNECT, next_step="run this on a cluster or machine of its own, not through Connect")
    context, made = _made.get(needs.catalog, (None, None))
    if made is None or context is not running.sparkContext:
        made = running.newSession()
        for key, value in own.items():
            made.conf.set(key, value)
        _made[needs.catalog] = running.sparkContext, made
    return made


def _both(first: Mapping[str, str], second: Mapping[str, str]) -> dict[str, str]:
    """Settings in which the second ones hold, and both parts of lists."""
    joined = {key: _joined(first[key], second[key]) for key in _LISTS if key in first and key in second}
    return {**first, **second, **joined}


def _joined(first: str, second: str) -> str:
    return ",".join(dict.fromkeys(each.strip() for each in f"{first},{second}".split(",") if each.strip()))


def missing_jars(needs: Needs) -> list[str]:
    """The jars of a catalog that are not there: Spark starts without them, and says so in its log alone."""
    found = (each.strip() for each in needs.conf.get("spark.jars", "").split(","))
    plain = [each.removeprefix("file://").removeprefix("file:") for each in found]
    return [each for each in plain if each and not re.search(r"://|[*?\[{]", each) and not os.path.exists(each)]


def _said_of(jars: list[str]) -> str:
    return f"the jar {jars[0]} of the catalog's spark.jars is not there" if jars else ""
