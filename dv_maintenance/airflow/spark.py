"""The engine of operators that rewrite: the Spark provider's sessions and connections, or the task's own process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Final, Literal, TypeVar

from airflow.providers.apache.spark.operators.spark_pyspark import PySparkOperator

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.engine.spark import SparkEngine
from dv_maintenance.engine.spark.session import local_settings, require_java, worker_python
from dv_maintenance.engine.spark.start import ended_if_interrupted
from dv_maintenance.service.engines import EngineOf

__all__ = ["SPARK_FIELDS", "NeedsSparkError", "NotStarted", "OnSpark"]

SPARK_FIELDS: Final = ("conn_id", "config_kwargs")
"""Templated."""

T = TypeVar("T")


class NeedsSparkError(Exception):
    """There is something to rewrite."""


class NotStarted:
    """Stands for Spark until there is something to rewrite."""

    name: ClassVar[str] = "spark"

    def run(self, tasks: Sequence[Any], **_: Any) -> list[Any]:
        if tasks:
            raise NeedsSparkError
        return []

    def close(self) -> None:
        pass


class OnSpark(PySparkOperator):
    """An operator that may need Spark.

    conn_id : a connection ``spark`` or ``spark_connect`` of the Spark provider; ``None``: local Spark.
    config_kwargs : Spark settings; they override the connection's.
    engine : ``local`` works in the task's own process, without Spark; ``auto`` does so for at most 1 GiB of files.
    """

    config_kwargs: dict[str, Any]

    def __init__(
        self,
        *,
        conn_id: str | None = None,
        config_kwargs: dict[str, Any] | None = None,
        engine: Literal["spark", "local", "auto"] = "spark",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            python_callable=lambda spark=None: spark,
            conn_id=conn_id,
            config_kwargs=config_kwargs,
            show_return_value_in_logs=False,
            **kwargs,
        )
        self.engine = engine

    def on_engine(self, context: Any, work: Callable[[EngineOf], T]) -> T:
        """What ``work`` returns. The session ends with it."""
        if self.engine == "local":
            return work(LocalEngine)
        # PySparkOperator makes the session, passes it in and stops it.
        self.python_callable = lambda spark=None: work(lambda: SparkEngine(spark))
        with self._local_spark(), ended_if_interrupted():
            found: T = PySparkOperator.execute(self, context)
        return found

    @contextmanager
    def _local_spark(self) -> Iterator[None]:
        """Without a connection: Spark's own defaults open its web page and its ports to the network."""
        settings = dict(self.config_kwargs)
        master = settings.pop("spark.master", "local[*]")
        if self.conn_id or "spark.remote" in settings or not master.startswith("local"):
            yield
            return
        require_java()
        self.config_kwargs = local_settings(master) | settings
        with worker_python(master):
            yield
