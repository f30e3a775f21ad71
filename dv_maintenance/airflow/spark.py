"""The engine of operators that rewrite: Spark by a connection or on this machine, or the task's own process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar
from urllib.parse import quote

from airflow.sdk import BaseHook, BaseOperator

from dv_maintenance.airflow.arguments import known, literal
from dv_maintenance.engine.auto import AutoEngine
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.engine.spark import SparkEngine
from dv_maintenance.engine.spark.shared import offered
from dv_maintenance.errors import UsageError

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from dv_maintenance.engine import Engine
    from dv_maintenance.service.engines import EngineOf

SPARK_FIELDS: Final = ("conn_id", "config_kwargs")
"""Templated."""
SPARK_TYPES: Final = ("spark", "spark_connect")
_ENGINES: Final = ("spark", "local", "auto")

T = TypeVar("T")


class OnSpark(BaseOperator):
    """An operator that may need Spark. A session starts only if there is something to rewrite, and ends with the task.

    :param conn_id: a connection ``spark`` or ``spark_connect``, as those of Airflow's Spark provider; ``None``: Spark
        on this machine, without ports that other machines reach.
    :param config_kwargs: Spark settings; they override the connection's.
    :param engine: ``local`` works in the task's own process, without Spark; ``auto`` does so for at most 1 GiB of
        files.
    """

    def __init__(
        self,
        *,
        conn_id: str | None = None,
        config_kwargs: dict[str, Any] | None = None,
        engine: Literal["spark", "local", "auto"] = "spark",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.conn_id = conn_id
        self.config_kwargs = config_kwargs or {}
        self.engine = engine
        if literal(engine):
            known(engine, _ENGINES, "engine")

    def on_engine(self, work: Callable[[EngineOf], T]) -> T:
        """What ``work`` returns. The engine ends with it."""
        started: list[Engine] = []

        def engine() -> Engine:
            if not started:
                started.append(self._engine())
            return started[0]

        try:
            with offered(engine):
                return work(engine)
        finally:
            for each in started:
                each.close()

    def _engine(self) -> Engine:
        if self.engine == "local":
            return LocalEngine()
        connection = None if self.conn_id is None else BaseHook.get_connection(self.conn_id)
        master, conf = spark_place(connection, self.config_kwargs)
        spark = SparkEngine(master=master, conf={"spark.app.name": f"{self.dag_id}-{self.task_id}", **conf})
        return AutoEngine(spark) if self.engine == "auto" else spark


def spark_place(connection: Connection | None, settings: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """The master, and Spark's other settings. Reads a connection as Airflow's Spark provider does: a host and a port
    are the master's URL, or that of Spark Connect with the token as password; its extra has settings.

    Raises UsageError for a connection of another type.
    """
    master, conf = "local[*]", {}
    if connection is not None:
        if connection.conn_type not in SPARK_TYPES:
            raise UsageError(
                f"connection {connection.conn_id} is of the type {connection.conn_type!r}",
                next_step="name one of the type spark or spark_connect as conn_id",
            )
        place = connection.host or master
        if connection.port:
            place = f"{place}:{connection.port}"
        conf = {key: _text(value) for key, value in connection.extra_dejson.items() if key.startswith("spark.")}
        master = place if connection.conn_type == "spark" else _connect_url(place, connection)
    conf |= {key: _text(value) for key, value in settings.items()}
    # As in a session: a remote one has no master.
    remote, given = conf.pop("spark.remote", None), conf.pop("spark.master", None)
    return remote or given or master, conf


def _connect_url(place: str, connection: Connection) -> str:
    parameters = {
        "user_id": connection.login,
        "token": connection.password,
        "use_ssl": connection.extra_dejson.get("use_ssl"),
    }
    given = [f"{name}={quote(_text(value), safe='')}" for name, value in parameters.items() if value not in {None, ""}]
    return ";".join([f"{place if '://' in place else f'sc://{place}'}/", *given])


def _text(value: Any) -> str:
    """Spark and gRPC write truth in small letters."""
    return str(value).lower() if isinstance(value, bool) else str(value)
