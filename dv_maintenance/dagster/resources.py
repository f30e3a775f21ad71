"""Where the work runs: a Spark session that starts when first needed and ends with the run that started it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from dagster_spark.utils import flatten_dict
from pydantic import Field, PrivateAttr

from dv_maintenance.dagster.internals import public

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from dv_maintenance.engine import Engine
    from dv_maintenance.service.settings import Spark

# dagster-pyspark brings dagster-spark, whose own component makes every command of `dg` warn, used or not.
warnings.filterwarnings("ignore", message="Class `SparkDeclarativePipelineScaffolder` is currently in preview")

# The parameter `spark` of an op: a SparkResource, or any resource with a `spark_session`.
SparkParam = dg.ResourceParam[Any]


@public
class SparkResource(LazyPySparkResource):  # type: ignore[misc]  # which has no types
    """dagster-pyspark's lazy session, with an engine for it. An active session is used and left running; one started
    here is stopped.

    Any resource with a ``spark_session`` can replace it, and it can stand wherever ops ask for a
    ``LazyPySparkResource``.
    """

    master: str = Field(default="local[*]", description="Spark master, or sc://host:15002 for Spark Connect.")
    spark_config: dict[str, Any] = Field(
        default_factory=dict, description="Spark settings for the session that it starts, flat or nested."
    )
    engine: Literal["spark", "local", "auto"] = Field(
        default="spark",
        description="local runs in the op's own process, without Spark; auto does so for up to 1 GiB of files.",
    )

    _engine: Any = PrivateAttr(default=None)

    @property
    def spark_session(self) -> SparkSession:
        """The session; the first call starts it."""
        from dv_maintenance.engine.auto import AutoEngine
        from dv_maintenance.engine.spark import SparkEngine

        engine = self.get_engine()
        if isinstance(engine, AutoEngine):
            engine = engine.spark
        if not isinstance(engine, SparkEngine):
            raise dg.DagsterInvariantViolationError("a resource with engine 'local' has no Spark session")
        return engine.session

    @property
    def spark_context(self) -> SparkContext:
        """Of the session; a session of Spark Connect has none."""
        return self.spark_session.sparkContext

    @public
    def get_engine(self) -> Engine:
        """The engine of this run. Starts no session yet."""
        if self._engine is None:
            from dv_maintenance.engine import get_engine

            conf = {name: _text(value) for name, value in flatten_dict(self.spark_config)}
            self._engine = get_engine(self.engine, self.master, conf)
        engine: Engine = self._engine
        return engine

    @contextmanager
    def yield_for_execution(self, context: dg.InitResourceContext) -> Iterator[SparkResource]:
        from dv_maintenance.engine.spark.shared import offered

        del context
        try:
            with offered(self.get_engine):
                yield self
        finally:
            if self._engine is not None:
                self._engine.close()
                self._engine = None


def _text(value: Any) -> str:
    """Of a setting, as Spark writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def spark_resource(spark: Spark) -> SparkResource | dg.ResourceDefinition:
    """The resource ``spark`` that the settings ask for: one of our own, or another resource of the location."""
    name = spark.resource
    if name is None:
        return SparkResource(master=spark.master, engine=spark.engine, spark_config=dict(spark.conf))
    return dg.ResourceDefinition(
        lambda context: getattr(context.resources, name),
        description=f"The resource {name}.",
        required_resource_keys={name},
    )


def engine_of(resource: Any) -> Engine:
    """The engine of a run's ``spark`` resource: a SparkResource, or another resource with a ``spark_session``."""
    if isinstance(resource, SparkResource):
        return resource.get_engine()
    from dv_maintenance.engine.spark import SparkEngine

    return SparkEngine(resource.spark_session)
