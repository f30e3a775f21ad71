"""Opens the table, the engine and the policy that the options name."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from dv_maintenance import tables
from dv_maintenance.cli.output import Output
from dv_maintenance.errors import UsageError

if TYPE_CHECKING:
    from dv_maintenance.engine import Engine
    from dv_maintenance.engine.spark import SparkEngine
    from dv_maintenance.service.engines import OnProgress
    from dv_maintenance.service.policies import Policy
    from dv_maintenance.service.tables_file import TableSettings, WatchConfig
    from dv_maintenance.tables.table import Table


def open_table(args: Namespace, out: Output) -> Table:
    """The table of a verb. Its storage options are never printed."""
    found = entry(args, out)
    if found is None:
        return tables.open_table(args.table, args.format, storage_options(args, out))
    lean_memory()
    return found.open()


def entry(args: Namespace, out: Output) -> TableSettings | None:
    """The entry of the table in the file of tables that the options name; ``None`` for a table named by its place.

    Raises
    ------
    UsageError : the file has no such table, or options say what the file says.
    """
    if not args.table.endswith((".yaml", ".yml")):
        if getattr(args, "name", None) is not None:
            # Not quoted: it may be the value of a misspelled option, and a secret.
            raise UsageError(
                f"1 unexpected argument: {args.table} is not a file of tables, so it takes no NAME",
                next_step="name one table, or a file that ends in .yaml and one of its tables",
            )
        return None
    if "entry" not in args:
        config, args.entry = _read_entry(args, out)
        args.spark = config.spark
    found: TableSettings = args.entry
    return found


def _read_entry(args: Namespace, out: Output) -> tuple[WatchConfig, TableSettings]:
    if getattr(args, "policy", None) or args.storage_option or args.format:
        raise UsageError(
            "the file has the policies and storage options of its tables",
            next_step="omit --policy, --storage-option and --format",
        )
    if args.name is None:
        raise UsageError(
            "this is a file of tables", next_step=f"name one of them: dvm {args.verb_name} {args.table} NAME"
        )
    from dv_maintenance.service.tables_file import WatchConfig, table_called

    configs = [config for config, _ in WatchConfig.read(args.table)]
    hide(configs, out)
    # Folders are searched only for a table that is not listed.
    listed = ((config, each) for config in configs for each in config.tables if each.name == args.name)
    return next(listed, None) or table_called(WatchConfig.load_all(args.table), args.name)


def hide(configs: Iterable[WatchConfig], out: Output) -> None:
    """Never print the storage options and tokens in files of tables."""
    from dv_maintenance.catalogs import secrets_of

    entries = (each for config in configs for each in (*config.tables, *config.folders))
    options = [value for each in entries for value in each.storage_options.values()]
    out.hide(options + [each for config in configs for of in config.catalogs.values() for each in secrets_of(of)])


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
    """The engine of a verb, closed at the end: that of the file of its table, unless ``--engine`` names another one.
    Spark starts with the first task.
    """
    from dv_maintenance.engine import get_engine

    own = getattr(args, "spark", None)
    if own is None or own.resource is not None:
        return closing(get_engine(args.engine or "spark"))
    return closing(get_engine(args.engine or own.engine, own.master, own.conf))


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


def load_policy(args: Namespace, own: TableSettings | None = None) -> Policy:
    """The policy of --policy, of a file's entry, or the defaults, changed by each --set."""
    from dv_maintenance.service.policies import load

    overrides = [f"{key}={value}" for key, value in args.overrides]
    return load(args.policy, overrides) if own is None else own.policy.with_overrides(overrides)
