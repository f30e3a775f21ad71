"""The grammar of the command line: verbs, their options, and the values of options.

argparse rather than a richer library: it imports in a tenth of the time.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NamedTuple, NoReturn

from dv_maintenance import __version__
from dv_maintenance.cli.values import (
    assignment,
    duration,
    instant,
    names,
    natural,
    pair,
    partition_types,
    share,
    with_sql,
)
from dv_maintenance.engine import ENGINES
from dv_maintenance.errors import UsageError
from dv_maintenance.units import DAY

# Those of ``service.lake``, which takes a while to import.
_ORDERS = ("worst", "dvs", "deleted", "oldest", "small", "expired", "name")

_PLANS = "show the plan; change nothing"
_COUNTS = "count the rows; change nothing"


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options of a command line, with ``verb``, the function that serves it.

    Raises
    ------
    UsageError : a verb, an option or a value is unknown or missing.
    SystemExit : after ``--help`` and ``--version``.
    """
    args, unknown = _parser(argv[0] if argv else None).parse_known_args(argv)
    if len(unknown) == 1 and not unknown[0].startswith("-") and getattr(args, "name", "") is None:
        # argparse gives up on an optional argument at the first option.
        args.name, unknown = unknown[0], []
    if unknown:
        # A misspelled --storage-option may hold a secret: quote options, never values.
        options = [word.split("=", 1)[0] for word in unknown if word.startswith("-")]
        what = f"unknown option {options[0]}" if options else f"{len(unknown)} unexpected argument(s)"
        near = get_close_matches(options[0], re.findall(r"--[a-z-]+", args.usage()), n=1) if options else []
        step = f"did you mean {near[0]}? 'dvm {args.verb_name} --help' lists all" if near else None
        raise UsageError(what, next_step=step or f"see 'dvm {args.verb_name} --help'")
    del args.usage
    args.verb = _load(args.verb_path)
    return args


def _load(path: str) -> Callable[..., int]:
    module, _, name = path.partition(":")
    verb: Callable[..., int] = getattr(import_module(f"dv_maintenance.cli.{module}"), name)
    return verb


class _Parser(argparse.ArgumentParser):
    """argparse that raises UsageError instead of printing and exiting."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})

    def error(self, message: str) -> NoReturn:
        verb = re.match(r"argument VERB: invalid choice: '([^']{1,40})' \(choose from (.*)\)$", message)
        if verb is None:
            raise UsageError(message, next_step=f"see '{self.prog} --help'")
        known = re.findall(r"[a-z-]+", verb[2])
        near = get_close_matches(verb[1], known, n=1)
        step = f"did you mean dvm {near[0]}?" if near else f"use one of {', '.join(known)}"
        raise UsageError(f"unknown verb {verb[1]!r}", next_step=step)


_Options = Callable[[_Parser], None]


class _Verb(NamedTuple):
    """``path``: module and function that serve it. ``options``: each function adds some."""

    path: str
    summary: str
    options: tuple[_Options, ...]


_VERBS: dict[str, _Verb] = {}


def _parser(word: str | None) -> _Parser:
    """``word``: the first one. If it is a verb, only that one gets its options: those of all verbs take a tenth of
    the time of a short one.
    """
    parser = _Parser(
        prog="dvm",
        description="Purge deletion vectors, vacuum expired files and write manifests for merge-on-read tables.",
        epilog="Exit codes: 0 done or nothing to do, 1 failed, 2 usage, 3 refused, 4 conflict, 5 damaged table. "
        "DVM_DEBUG=1 shows tracebacks.",
    )
    parser.add_argument("--version", action="version", version=f"dvm {__version__}")
    verbs = parser.add_subparsers(dest="verb_name", metavar="VERB", required=True)
    for name in [word] if word in _VERBS else _VERBS:
        path, summary, options = _VERBS[name]
        made = verbs.add_parser(name, help=summary, description=summary)
        made.set_defaults(verb_path=path, usage=made.format_usage)
        for add in options:
            add(made)
    return parser


def _verb(summary: str, *shared: _Options, module: str = "verbs") -> Callable[[_Options], _Options]:
    """The verb of the function's name, which the function of that name in ``module`` serves. Its options come after
    the shared ones.
    """

    def known(own: _Options) -> _Options:
        _VERBS[own.__name__.replace("_", "-")] = _Verb(f"{module}:{own.__name__}", summary, (_output, *shared, own))
        return own

    return known


# -- options that verbs share ------------------------------------------------------------------------------------------


def _flag(verb: _Parser, name: str, help: str) -> None:
    verb.add_argument(name, action="store_true", help=help)


def _many(verb: _Parser, name: str, metavar: str, help: str, **how: Any) -> None:
    """An option that may be repeated."""
    verb.add_argument(name, action="append", default=[], metavar=metavar, help=help, **how)


def _output(verb: _Parser) -> None:
    _flag(verb, "--json", "print exactly one JSON document on stdout")
    verb.add_argument("-v", "--verbose", action="count", default=0, help="log progress on stderr; -vv: in detail")


def _table(verb: _Parser) -> None:
    _table_and_name(verb, "a table of the file, with its settings there")


def _table_and_name(verb: _Parser, help: str) -> None:
    verb.add_argument(
        "table",
        metavar="TABLE|TABLES.yaml",
        help="path, URI or name in a catalog; or a file of tables, and the NAME of one",
    )
    verb.add_argument("name", nargs="?", metavar="NAME", help=help)


def _access(verb: _Parser) -> None:
    # Every verb accepts these, so that a script can pass the same options to all. Spark starts only where it is needed.
    verb.add_argument("--engine", choices=ENGINES, help="default: that of the file of tables, or spark")
    _storage(verb)


def _sql_access(verb: _Parser) -> None:
    verb.add_argument(
        "--engine",
        type=with_sql,
        metavar="{spark,auto}",
        help="values and clauses are Spark SQL: either means Spark (default: that of the file of tables, or spark)",
    )
    _storage(verb)


def _storage(verb: _Parser) -> None:
    verb.add_argument("--format", metavar="NAME", help="table format (default: detected)")
    _many(verb, "--storage-option", "K=V", type=pair, help="for object storage (repeatable)")


def _policy(verb: _Parser) -> None:
    verb.add_argument("--policy", metavar="FILE", help="policy in YAML; without it, the defaults apply")
    _overrides(verb, "override (repeatable)")


def _overrides(verb: _Parser, help: str) -> None:
    _many(verb, "--set", "K=V", help, type=pair, dest="overrides")


def _rows_output(verb: _Parser) -> None:
    verb.add_argument("-o", "--output", metavar="FILE", help=".parquet, .csv, .arrow or .jsonl")
    verb.add_argument(
        "--as",
        dest="form",
        choices=("table", "csv", "jsonl"),
        help="what stdout shows (default: a table on a terminal, elsewhere JSON lines)",
    )


def _plan_view(verb: _Parser) -> None:
    _flag(verb, "--all", "show every step of the plan, even if they fill more than a screen")
    _flag(verb, "--markdown", "show the plan as Markdown, the default for files and pipes")


def _partitions(verb: _Parser) -> None:
    _many(verb, "--partition", "K=V", "only this partition: a value, or K=V/K=V as 'dvm health' prints it (repeatable)")
    _flag(verb, "--missing-ok", "accept partitions without live files")


# -- verbs, in the order of the help -----------------------------------------------------------------------------------


@_verb("Show deletion vectors, files and rows, in total and per partition", _table, _access, _policy)
def health(verb: _Parser) -> None:
    verb.add_argument("--version", type=natural, metavar="N", help="read an older version")


@_verb("Check every file that readers need; show what is damaged and how to repair it", _table, _access)
def fsck(verb: _Parser) -> None:
    _flag(verb, "--deep", "also read footers, deletion vectors and NOT NULL columns")
    verb.add_argument("--version", type=natural, metavar="N", help="read an older version")


@_verb("Print the live rows of a table, with deletion vectors applied", _table, _access, module="rows")
def read(verb: _Parser) -> None:
    verb.add_argument("--version", type=natural, metavar="N", help="read an older version")
    verb.add_argument(
        "--columns", type=names, metavar="A,B", help="only these columns, in this order; `a,b` in backticks has a comma"
    )
    verb.add_argument("--limit", type=natural, metavar="N", help="at most this many rows")
    verb.add_argument(
        "--where", metavar="SQL", help="only rows for which this Spark SQL is true; --engine local knows a part of it"
    )
    _rows_output(verb)


@_verb("Show what a policy would do, or a sensor, and why; change nothing", _access, _policy)
def plan(verb: _Parser) -> None:
    _table_and_name(verb, "what a sensor would decide for this table of the file")
    verb.add_argument("--cursor", metavar="FILE", help="with NAME: the cursor of the sensor, as its page shows it")
    verb.add_argument("-o", "--output", metavar="FILE", help="write the plan to this file, for 'dvm apply --plan'")
    _plan_view(verb)


@_verb("Plan by a policy and rewrite files, or run a saved plan", _table, _access, _policy)
def apply(verb: _Parser) -> None:
    verb.add_argument("--plan", metavar="FILE", help="run this plan instead of making one")
    _flag(verb, "--dry-run", _PLANS)
    _plan_view(verb)


@_verb("Purge every deletion vector, whatever the policy's thresholds", _table, _access)
def purge(verb: _Parser) -> None:
    _partitions(verb)
    _flag(verb, "--dry-run", _PLANS)
    _plan_view(verb)


@_verb("Delete files that no version inside the retention needs", _table, _access)
def vacuum(verb: _Parser) -> None:
    verb.add_argument("--retention", type=duration, metavar="168h", help="overrides the table's own property")
    _flag(verb, "--dry-run", "list what would be deleted; change nothing")
    _flag(verb, "--lite", "read only the log, without listing the table")
    _flag(
        verb,
        "--allow-short-retention",
        "accept a --retention below the table's property: running readers and time travel may break",
    )
    _many(
        verb,
        "--protect",
        "URI",
        "a shallow clone whose files must stay: the table does not know its clones (repeatable; Delta, Lance)",
    )
    _many(
        verb,
        "--clones-under",
        "FOLDER",
        "find shallow clones of the table in this folder and protect them (repeatable; Delta, Lance)",
    )
    _many(
        verb, "--protect-version", "N", type=natural, help="keep this version readable, whatever its age (repeatable)"
    )
    _many(
        verb,
        "--protect-stream",
        "URI",
        "the checkpoint folder of a streaming reader: keep what it has not read yet (repeatable; Delta)",
    )
    verb.add_argument(
        "--max-deleted-share",
        type=share,
        metavar="0.5",
        help="refuse to delete more than this share of files or bytes; 1 allows any (default: 0.5 of unknown files)",
    )
    _flag(verb, "--quarantine", "set files aside in a folder of the table instead of deleting them")
    verb.add_argument(
        "--quarantine-retention",
        type=duration,
        default=7 * DAY,
        metavar="7d",
        help="delete what earlier runs quarantined after this time (default: 7d)",
    )


@_verb("Undelete files that vacuums quarantined (--quarantine)", _table, _access)
def undelete(verb: _Parser) -> None:
    verb.add_argument("--since", type=instant, metavar="T", help="only from vacuums since this time, ISO 8601")
    verb.add_argument("--until", type=instant, metavar="T", help="only from vacuums up to this time, ISO 8601")
    _flag(verb, "--dry-run", "count what would be undeleted; change nothing")


@_verb("Write symlink manifests for readers that do not support deletion vectors", _table, _access)
def manifest(verb: _Parser) -> None:
    _flag(verb, "--purge-first", "purge deletion vectors if there are any")
    _flag(verb, "--dry-run", "say what would be written; change nothing")


@_verb("Show what the table's past would have cost under other policies; change nothing", _access)
def simulate(verb: _Parser) -> None:
    verb.add_argument("table", metavar="TABLE|TABLES.yaml", help="path, URI or name in a catalog, or a file of tables")
    verb.add_argument(
        "--since", type=duration, default=30 * DAY, metavar="30d", help="how far to go back (default: 30d)"
    )
    _many(verb, "--policy", "FILE", "a policy in YAML (repeatable)")
    _overrides(verb, "set a key in all of these policies (repeatable)")
    verb.add_argument("-o", "--output", metavar="FILE.svg", help="draw the costs as a picture")


@_verb("List commits, newest first, and their effect on deletion vectors", _table, _access)
def history(verb: _Parser) -> None:
    verb.add_argument("--limit", type=natural, metavar="N", help="only the newest N")


@_verb("Inspect many tables: show what changed and what is due", _access)
def watch(verb: _Parser) -> None:
    verb.add_argument("tables", metavar="TABLES.yaml", help="a file of tables, or the defs.yaml of a Dagster component")
    _flag(verb, "--once", "inspect once (a Dagster sensor watches continuously)")


@_verb("List every table below a folder, worst first: DVs, files, due work", _access, _policy)
def scan(verb: _Parser) -> None:
    verb.add_argument(
        "root", metavar="ROOT|TABLES.yaml", help="a folder or prefix, a schema of a catalog, or a file of tables"
    )
    verb.add_argument("--sort", choices=_ORDERS, default="worst", help="the order (default: %(default)s)")
    verb.add_argument("--limit", type=natural, metavar="N", help="show only the first N; totals count every table")
    verb.add_argument(
        "--metrics", metavar="FILE.prom|URL", help="also for Prometheus: a textfile collector's file, or a push gateway"
    )


@_verb("Check a file of tables or the defs.yaml of a Dagster component, key by key", _access)
def check(verb: _Parser) -> None:
    verb.add_argument("file", metavar="FILE", help="tables.yaml or defs.yaml")
    _flag(verb, "--open", "also list its folders and open every table")


@_verb("Check Java, packages and storage; show how to get what is missing", _access, module="doctor")
def doctor(verb: _Parser) -> None:
    verb.add_argument(
        "table", nargs="?", metavar="TABLE|CATALOG", help="also check that this table can be read, or a catalog reached"
    )
    verb.add_argument("name", nargs="?", metavar="NAME", help="if TABLE is a file of tables: one of its tables")
    _flag(
        verb,
        "--try-writing",
        "also write one object to the table's store twice (the second write must fail), then delete it",
    )


@_verb("Build tables with deletion vectors, maintain them and compare", _access, module="demo")
def demo(verb: _Parser) -> None:
    verb.add_argument("--rows", type=natural, default=3_000_000, metavar="N", help="default: %(default)s")
    verb.add_argument("--dir", default="demo", metavar="PATH", help="where to build it (default: %(default)s)")


@_verb("List the rows that each version inserted, deleted or updated", _table, _access, module="rows")
def changes(verb: _Parser) -> None:
    verb.add_argument("--from", type=natural, required=True, dest="first", metavar="V", help="the first version")
    verb.add_argument("--to", type=natural, dest="last", metavar="V", help="the last version (default: newest)")
    _rows_output(verb)


@_verb("Make an older version the newest", _table, _access)
def restore(verb: _Parser) -> None:
    point = verb.add_mutually_exclusive_group(required=True)
    point.add_argument("--version", type=natural, metavar="N", help="the version to restore")
    point.add_argument(
        "--timestamp", type=instant, metavar="T", help="restore the newest version at that time, ISO 8601"
    )
    _flag(verb, "--dry-run", "show what would change; change nothing")
    _many(
        verb,
        "--vacuum-over",
        "N",
        type=natural,
        help="the vacuum that began with version N was killed before its VACUUM END (repeatable)",
    )


@_verb("Make the table readable without deletion vectors", _table, _access)
def downgrade(verb: _Parser) -> None:
    _flag(verb, "--truncate-history", "finally delete the history, so that old writers work too (takes a day)")
    _flag(verb, "--dry-run", "show each step and its state; change nothing")


@_verb("Write a checkpoint of the log", _table, _access)
def checkpoint(verb: _Parser) -> None:
    _flag(verb, "--clean-log", "delete log files beyond the log retention")
    _flag(verb, "--dry-run", "show what would be written and deleted; change nothing")


@_verb("Delta: publish the commits that a catalog has ratified", _table, _access)
def publish(verb: _Parser) -> None:
    _flag(verb, "--dry-run", "show what would be published; change nothing")


@_verb("Delta: correct row counts, sizes and cardinalities in the log by the files themselves", _table, _access)
def recount(verb: _Parser) -> None:
    _flag(verb, "--dry-run", "read every footer and deletion vector; change nothing")


@_verb(
    "Lance: rename V1 manifests to V2 names. NOT SAFE while writers are active: stop them all first", _table, _access
)
def rename_manifests(verb: _Parser) -> None:
    _flag(verb, "--dry-run", "count what would be renamed; change nothing")


@_verb("Delete rows, using deletion vectors", _table, _access)
def delete(verb: _Parser) -> None:
    verb.add_argument("--where", metavar="SQL", help="a condition in Spark SQL; --engine local knows a part of it")
    verb.add_argument("--keys", metavar="PATH", help="keys to delete: a table, or Parquet, CSV or JSON; needs --on")
    verb.add_argument(
        "--on",
        type=names,
        default=[],
        metavar="A,B",
        help="the key columns, named the same in both; `a,b` in backticks has a comma",
    )
    _flag(verb, "--dry-run", _COUNTS)


@_verb("Update rows: mark them deleted, and write them again to new files", _table, _sql_access)
def update(verb: _Parser) -> None:
    verb.add_argument(
        "--set",
        type=assignment,
        action="append",
        required=True,
        metavar="COL=SQL",
        help="column and value (repeatable)",
    )
    verb.add_argument("--where", metavar="SQL", help="a condition in Spark SQL (default: every row)")
    _flag(verb, "--dry-run", _COUNTS)


@_verb("Update, delete and insert rows from a source", _table, _sql_access)
def merge(verb: _Parser) -> None:
    verb.add_argument("--using", required=True, metavar="PATH", help="the source: a table, or Parquet, CSV or JSON")
    verb.add_argument("--on", required=True, metavar="SQL", help="which rows match, such as target.id = source.id")
    verb.add_argument(
        "--when",
        action="append",
        required=True,
        metavar="CLAUSE",
        help="MATCHED [AND ...] THEN UPDATE SET *, ... (repeatable; the first that applies wins)",
    )
    _flag(verb, "--dry-run", _COUNTS)


@_verb("Run maintenance in the table's own engine, and check it with dvm's reader", _table, _access)
def engine_sql(verb: _Parser) -> None:
    verb.add_argument("job", choices=("optimize", "purge", "vacuum"), help="what to run on the whole table")
    verb.add_argument(
        "--catalog", metavar="NAME", help="the session's catalog with the Paimon table, or catalog.database.table"
    )
    _many(verb, "--spark-conf", "K=V", type=pair, help="Spark setting (repeatable)")


@_verb("Turn a folder of Parquet files into a table", _table, _access)
def convert(verb: _Parser) -> None:
    verb.add_argument(
        "--partition-by",
        type=partition_types,
        metavar="SQL",
        help="types of the folders' columns: 'day DATE, n INT'",
    )
    _flag(verb, "--rewrite", "write files that can't be read with the others again, next to them")
    _flag(verb, "--dry-run", "read every footer; write nothing")


@_verb("Cluster what is not clustered yet, by the table's own columns", _table, _access)
def cluster(verb: _Parser) -> None:
    _flag(verb, "--full", "also files that were clustered by other columns")
    verb.add_argument("--target-file-size", metavar="256MiB", help="overrides the table's own property")
    _flag(verb, "--dry-run", _PLANS)
    _plan_view(verb)


@_verb("Order files by columns, so that filters on them skip more", _table, _access)
def zorder(verb: _Parser) -> None:
    verb.add_argument(
        "--columns",
        type=names,
        required=True,
        metavar="A,B",
        help="the columns of the curve; `a,b` in backticks has a comma",
    )
    _partitions(verb)
    verb.add_argument("--target-file-size", metavar="256MiB", help="overrides the table's own property")
    _flag(verb, "--dry-run", _PLANS)
    _plan_view(verb)
