"""Opens the table, the engine and the policy that the options name."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from dv_maintenance import tables
from dv_maintenance.cli.output import Output

if TYPE_CHECKING:
    from dv_maintenance.engine import Engine
    from dv_maintenance.engine.spark import SparkEngine
    from dv_maintenance.service.engines import OnProgress
    from dv_maintenance.service.policies import Policy
    from dv_maintenance.tables.table import Table


def open_table(args: Namespace, out: Output) -> Table:
    """The table of a verb. Its storage options are never printed."""
    return tables.open_table(args.table, args.format, storage_options(args, out))


def open_future_table(args: Namespace, out: Output) -> Table:
    """The table that a folder of data files can become. Its format can't be detected: ``--format``, or the first one
    that adopts files.
    """
    if args.format:
        return open_table(args, out)
    return tables.open_adopting_table(args.table, storage_options(args, out))


def storage_options(args: Namespace, out: Output) -> dict[str, str]:
    """The storage options of a verb, which are never printed."""
    lean_memory()
    options = dict(args.storage_option)
    out.hide(options.values())
    return options


def lean_memory() -> None:
    """Let Arrow use the system's allocator in this process.

    A log is read into large, short-lived buffers. Arrow's default allocator gives them huge pages, and clearing these
    costs a third of the CPU time of opening a million files.
    """
    pa.set_memory_pool(pa.system_memory_pool())


def open_engine(args: Namespace) -> AbstractContextManager[Engine]:
    """The engine of a verb, closed at the end. Spark starts with the first task."""
    from dv_maintenance.engine import get_engine

    return closing(get_engine(args.engine))


@contextmanager
def working(args: Namespace, out: Output, what: str) -> Iterator[tuple[Engine, OnProgress]]:
    """The engine of a verb that may take long, and the callback of its progress. ``what``: for the line of progress."""
    from dv_maintenance.engine import rows_read_of

    with out.progress(what) as progress, open_engine(args) as engine:
        progress.rows = lambda: rows_read_of(engine)
        yield engine, progress


def spark_engine(conf: Mapping[str, str]) -> AbstractContextManager[SparkEngine]:
    """Spark with these settings, whatever ``--engine`` is."""
    from dv_maintenance.engine.spark import SparkEngine

    return closing(SparkEngine(conf=conf))


def load_policy(args: Namespace) -> Policy:
    """The policy of --policy, or the defaults, changed by each --set."""
    from dv_maintenance.service.policies import load

    return load(args.policy, [f"{key}={value}" for key, value in args.overrides])
