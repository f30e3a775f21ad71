"""A session on a Spark that runs elsewhere, through Spark Connect: no Java on this side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dv_maintenance.errors import EngineUnavailableError, MissingSoftwareError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

# PySpark itself retries silently for ten minutes.
_PATIENCE_SECONDS = 30


def connect(url: str, conf: Mapping[str, str]) -> SparkSession:
    """A session on the server at ``url`` (``sc://host:port/;token=...``), which no error shows: tokens are secret.

    Raises
    ------
    MissingSoftwareError : a package that Spark Connect needs is missing.
    EngineUnavailableError : no server answers.
    UsageError : ``url`` is not a URL of that kind.
    """
    from pyspark.sql import SparkSession

    _await_server(url)
    builder: SparkSession.Builder = SparkSession.builder
    builder = builder.remote(url)
    for key, value in conf.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _await_server(url: str) -> None:
    try:
        import grpc
        from pyspark.sql.connect.client import DefaultChannelBuilder
    except ImportError as error:
        raise MissingSoftwareError(
            f"Spark Connect can't be used: {error}", next_step="pip install 'dv-maintenance[connect]'"
        ) from error
    try:
        address = DefaultChannelBuilder(url)
    except ValueError:
        raise UsageError(
            "this is not the address of a Spark Connect server", next_step="write sc://HOST:PORT, parameters after '/;'"
        ) from None
    with address.toChannel() as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=_PATIENCE_SECONDS)
        except grpc.FutureTimeoutError:
            raise EngineUnavailableError(
                f"no Spark Connect server answered at {address.endpoint} within {_PATIENCE_SECONDS} seconds",
                next_step="check that the server is running, and the host, port, use_ssl and token in the address",
            ) from None
