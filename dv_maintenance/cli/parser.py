"""The grammar of the command line: verbs, their options, and the values of options.

argparse rather than a richer library: it imports in a tenth of the time.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NoReturn

from dv_maintenance import __version__
from dv_maintenance.cli.values import duration, instant, names, natural, pair, partition_types, share
from dv_maintenance.engine import ENGINES
from dv_maintenance.errors import UsageError

# Those of ``service.lake``, which takes a while to import.
_ORDERS = ("worst", "dvs", "deleted", "oldest", "small", "removable", "name")

__all__ = ["parse"]


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options of a command line, with ``verb``, the function that serves it.

    Raises
    ------
    UsageError : a verb, an option or a value is unknown or missing.
    SystemExit : after ``--help`` and ``--version``.
    """
    args, unknown = _parser().parse_known_args(argv)
    if unknown:
        # A misspelled --storage-option may hold a secret: quote options, never values.
        options = [word.split("=", 1)[0] for word in unknown if word.startswith("-")]
        what = f"unknown option {options[0]}" if options else f"{len(unknown)} argument(s) too many"
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
        raise UsageError(f"{verb[1]!r} is not a verb of dvm", next_step=step)


def _parser() -> _Parser:
    parser = _Parser(
        prog="dvm",
        description="Purge deletion vectors, vacuum expired files and write manifests for merge-on-read tables.",
        epilog="Exit codes: 0 done or nothing to do, 1 failed, 2 usage, 3 refused, 4 conflict, 5 damaged table. "
        "DVM_DEBUG=1 shows tracebacks.",
    )
    parser.add_argument("--version", action="version", version=f"dvm {__version__}")
    verbs = parser.add_subparsers(dest="verb_name", metavar="VERB", required=True)

    json_option, table, access, policy = _json_option(), _table(), _access(), _policy()

    def verb(name: str, path: str, summary: str, *parents: _Parser) -> argparse.ArgumentParser:
        made = verbs.add_parser(name, help=summary, description=summary, parents=[json_option, *parents])
        made.set_defaults(verb_path=path, usage=made.format_usage)
        return made

    health = verb(
        "health", "verbs:health", "Deletion vectors, files and rows, in total and per partition", table, access, policy
    )
    health.add_argument("--version", type=natural, metavar="N", help="an older version")

    fsck = verb(
        "fsck",
        "verbs:fsck",
        "Look for every file that readers need; say what is damaged and how to repair it",
        table,
        access,
    )
    fsck.add_argument("--deep", action="store_true", help="also read every data file's footer and deletion vector")
    fsck.add_argument("--version", type=natural, metavar="N", help="an older version")

    read = verb("read", "rows:read", "The live rows of a table, deletion vectors applied", table, access)
    read.add_argument("--version", type=natural, metavar="N", help="an older version")
    read.add_argument("--columns", type=names, metavar="A,B", help="only these, in this order")
    read.add_argument("--limit", type=natural, metavar="N", help="at most so many rows")
    read.add_argument("--where", metavar="SQL", help="only rows for which this is true: a condition in Spark SQL")
    _rows_output(read)

    plan = verb("plan", "verbs:plan", "What a policy would do, and why; changes nothing", table, access, policy)
    plan.add_argument("-o", "--output", metavar="FILE", help="write the plan there, for 'dvm apply --plan'")
    _plan_view(plan)

    apply = verb("apply", "verbs:apply", "Plan by a policy and rewrite files; or run a plan", table, access, policy)
    apply.add_argument("--plan", metavar="FILE", help="run this plan instead of making one")
    apply.add_argument("--dry-run", action="store_true", help="show the plan; change nothing")
    _plan_view(apply)

    purge = verb("purge", "verbs:purge", "Purge every deletion vector, even a single one", table, access)
    _partitions(purge)

    vacuum = verb("vacuum", "verbs:vacuum", "Delete files that no version inside the retention needs", table, access)
    vacuum.add_argument("--retention", type=duration, metavar="168h", help="overrides the table's own property")
    vacuum.add_argument("--dry-run", action="store_true", help="list what would be deleted; change nothing")
    vacuum.add_argument("--lite", action="store_true", help="use the log alone, without listing the table")
    vacuum.add_argument(
        "--allow-short-retention",
        action="store_true",
        help="accept a --retention below the table's property: running readers and time travel may break",
    )

    vacuum.add_argument(
        "--protect",
        action="append",
        default=[],
        metavar="URI",
        help="a shallow clone, which the table does not know: keep the files that it needs (repeatable; Delta, Lance)",
    )
    vacuum.add_argument(
        "--clones-under",
        action="append",
        default=[],
        metavar="FOLDER",
        help="find shallow clones of the table in this folder and protect them (repeatable; Delta, Lance)",
    )
    vacuum.add_argument(
        "--protect-version",
        type=natural,
        action="append",
        default=[],
        metavar="N",
        help="keep this version readable, whatever its age (repeatable)",
    )
    vacuum.add_argument(
        "--protect-stream",
        action="append",
        default=[],
        metavar="URI",
        help="the checkpoint folder of a streaming reader: keep what it has not read yet (repeatable; Delta)",
    )
    vacuum.add_argument(
        "--max-deleted-share",
        type=share,
        metavar="0.5",
        help="refuse to delete a larger share of files or bytes (default: half, of what history does not know); 1: any",
    )

    vacuum.add_argument(
        "--quarantine", action="store_true", help="set files aside below the table instead of deleting them"
    )
    vacuum.add_argument(
        "--quarantine-retention",
        type=duration,
        default=7 * 86_400_000,
        metavar="7d",
        help="delete what earlier runs set aside after this time (default: 7d)",
    )

    undelete = verb("undelete", "verbs:undelete", "Put back files that vacuums set aside (--quarantine)", table, access)
    undelete.add_argument("--since", type=instant, metavar="T", help="only from vacuums since this time, ISO 8601")
    undelete.add_argument("--until", type=instant, metavar="T", help="only from vacuums up to this time, ISO 8601")
    undelete.add_argument("--dry-run", action="store_true", help="count what would be put back; change nothing")

    manifest = verb(
        "manifest", "verbs:manifest", "Symlink manifests for readers without deletion vectors", table, access
    )
    manifest.add_argument("--purge-first", action="store_true", help="purge deletion vectors if there are any")

    simulate = verb(
        "simulate", "verbs:simulate", "What the table's past would have cost under policies; changes nothing", access
    )
    simulate.add_argument("table", metavar="TABLE|TABLES.yaml", help="path or URI, or a file of tables")
    simulate.add_argument(
        "--since", type=duration, default=30 * 86_400_000, metavar="30d", help="how far to go back (default: 30d)"
    )
    simulate.add_argument("--policy", action="append", default=[], metavar="FILE", help="a policy in YAML (repeatable)")
    simulate.add_argument(
        "--set", type=pair, action="append", default=[], dest="overrides", metavar="K=V", help="in all of them"
    )
    simulate.add_argument("-o", "--output", metavar="FILE.svg", help="write the costs as a picture")

    history = verb(
        "history", "verbs:history", "Commits, newest first, and their effect on deletion vectors", table, access
    )
    history.add_argument("--limit", type=natural, metavar="N", help="only the newest N")

    watch = verb("watch", "verbs:watch", "Inspect many tables: what changed and what is due", access)
    watch.add_argument("tables", metavar="TABLES.yaml", help="their file, or that of a Dagster component")
    watch.add_argument("--once", action="store_true", help="inspect once (a Dagster sensor watches continuously)")

    scan = verb(
        "scan", "verbs:scan", "Every table below a folder, the worst first: DVs, files, due work", access, policy
    )
    scan.add_argument("root", metavar="ROOT|TABLES.yaml", help="a folder or prefix, or a file of tables")
    scan.add_argument("--sort", choices=_ORDERS, default="worst", help="the order (default: %(default)s)")
    scan.add_argument("--limit", type=natural, metavar="N", help="show only the first N; totals count every table")
    scan.add_argument(
        "--metrics", metavar="FILE.prom|URL", help="also for Prometheus: a textfile collector's file, or a push gateway"
    )

    check = verb("check", "verbs:check", "Check a tables file, or that of a Dagster component, key by key", access)
    check.add_argument("file", metavar="FILE", help="tables.yaml or defs.yaml")
    check.add_argument("--open", action="store_true", help="also list its folders and open every table")

    doctor = verb("doctor", "doctor:doctor", "Check Java, packages and storage; say how to get what is missing", access)
    doctor.add_argument("table", nargs="?", metavar="TABLE", help="also check that this table can be read")
    doctor.add_argument(
        "--try-writing",
        action="store_true",
        help="also put an object into the table's store twice, which must fail, and delete it",
    )

    demo = verb("demo", "demo:demo", "Build tables with deletion vectors, maintain them and compare", access)
    demo.add_argument("--rows", type=natural, default=3_000_000, metavar="N", help="default: %(default)s")
    demo.add_argument("--dir", default="demo", metavar="PATH", help="where to build it (default: %(default)s)")

    changes = verb("changes", "rows:changes", "Rows that each version inserted, deleted or updated", table, access)
    changes.add_argument("--from", type=natural, required=True, dest="first", metavar="V", help="the first version")
    changes.add_argument("--to", type=natural, dest="last", metavar="V", help="the last version (default: newest)")
    _rows_output(changes)

    restore = verb("restore", "verbs:restore", "Make an older version the newest", table, access)
    point = restore.add_mutually_exclusive_group(required=True)
    point.add_argument("--version", type=natural, metavar="N", help="that version")
    point.add_argument("--timestamp", type=instant, metavar="T", help="the newest version at that time, ISO 8601")
    restore.add_argument("--dry-run", action="store_true", help="show what would change; change nothing")
    restore.add_argument(
        "--vacuum-over",
        type=natural,
        action="append",
        default=[],
        metavar="N",
        help="the vacuum that began with version N was killed before its VACUUM END (repeatable)",
    )

    downgrade = verb("downgrade", "verbs:downgrade", "Make the table readable without deletion vectors", table, access)
    downgrade.add_argument(
        "--truncate-history", action="store_true", help="finally delete the history, for old writers too (takes a day)"
    )
    downgrade.add_argument("--dry-run", action="store_true", help="show each step and its state; change nothing")

    checkpoint = verb("checkpoint", "verbs:checkpoint", "Write a checkpoint of the log", table, access)
    checkpoint.add_argument("--clean-log", action="store_true", help="delete log files beyond the log retention")
    checkpoint.add_argument("--dry-run", action="store_true", help="say what would be written and deleted")

    rename = verb(
        "rename-manifests",
        "verbs:rename_manifests",
        "Lance: V2 names for manifests that have V1 names. NOT SAFE beside writers: stop them all first",
        table,
        access,
    )
    rename.add_argument("--dry-run", action="store_true", help="count what would be renamed; change nothing")

    delete = verb("delete", "verbs:delete", "Delete rows by deletion vectors", table, access)
    delete.add_argument("--where", metavar="SQL", help="a condition in Spark SQL")
    delete.add_argument("--keys", metavar="PATH", help="keys to delete: a table, or Parquet, CSV or JSON; with --on")
    delete.add_argument("--on", type=names, default=[], metavar="A,B", help="the key columns, named alike in both")
    delete.add_argument("--dry-run", action="store_true", help="count the rows; change nothing")

    update = verb(
        "update", "verbs:update", "Update rows: new files replace what deletion vectors delete", table, access
    )
    update.add_argument(
        "--set",
        type=pair,
        action="append",
        required=True,
        metavar="COL=SQL",
        help="column and value (repeatable)",
    )
    update.add_argument("--where", metavar="SQL", help="a condition in Spark SQL; every row without one")

    merge = verb("merge", "verbs:merge", "Update, delete and insert rows by a source", table, access)
    merge.add_argument("--using", required=True, metavar="PATH", help="the source: a table, or Parquet, CSV or JSON")
    merge.add_argument("--on", required=True, metavar="SQL", help="which rows match: target.id = source.id")
    merge.add_argument(
        "--when",
        action="append",
        required=True,
        metavar="CLAUSE",
        help="MATCHED [AND ...] THEN UPDATE SET *, ... (repeatable; the first that applies wins)",
    )

    engine_sql = verb(
        "engine-sql",
        "verbs:engine_sql",
        "Maintenance by the table's own engine, checked by dvm's reader",
        table,
        access,
    )
    engine_sql.add_argument("job", choices=("optimize", "purge", "vacuum"), help="what to run on the whole table")
    engine_sql.add_argument(
        "--catalog", metavar="NAME", help="the session's catalog that has a Paimon table, or catalog.database.table"
    )
    engine_sql.add_argument(
        "--spark-conf", type=pair, action="append", default=[], metavar="K=V", help="Spark setting (repeatable)"
    )

    convert = verb("convert", "verbs:convert", "Turn a folder of Parquet files into a table", table, access)
    convert.add_argument(
        "--partition-by",
        type=partition_types,
        metavar="SQL",
        help="types of the folders' columns: 'day DATE, n INT'",
    )
    convert.add_argument("--dry-run", action="store_true", help="read every footer; write nothing")

    zorder = verb("zorder", "verbs:zorder", "Order files by columns, so that filters on them skip more", table, access)
    zorder.add_argument("--columns", type=names, required=True, metavar="A,B", help="the columns of the Z-curve")
    _partitions(zorder)
    zorder.add_argument("--target-file-size", metavar="256MiB", help="overrides the table's own property")
    zorder.add_argument("--dry-run", action="store_true", help="show the plan; change nothing")
    _plan_view(zorder)
    return parser


def _rows_output(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("-o", "--output", metavar="FILE", help=".parquet, .csv, .arrow or .jsonl")
    verb.add_argument(
        "--as",
        dest="form",
        choices=("table", "csv", "jsonl"),
        help="what stdout shows (default: a table on a terminal, elsewhere JSON lines)",
    )


def _plan_view(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--all", action="store_true", help="every step of the plan, not only those that fit on a screen")
    verb.add_argument("--markdown", action="store_true", help="the plan as Markdown, as files and pipes get it")


def _partitions(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--partition",
        action="append",
        default=[],
        metavar="K=V",
        help="only there: a value, or K=V/K=V as health prints it (repeatable)",
    )
    verb.add_argument("--missing-ok", action="store_true", help="accept partitions that no live file has")


def _json_option() -> _Parser:
    parser = _Parser(add_help=False)
    parser.add_argument("--json", action="store_true", help="print exactly one JSON document on stdout")
    parser.add_argument("-v", "--verbose", action="count", default=0, help="log progress on stderr; -vv: in detail")
    return parser


def _table() -> _Parser:
    parser = _Parser(add_help=False)
    parser.add_argument("table", metavar="TABLE", help="path or URI")
    return parser


def _access() -> _Parser:
    # Every verb accepts these, so that a script can pass the same options to all. Spark starts only where it is needed.
    parser = _Parser(add_help=False)
    parser.add_argument("--format", metavar="NAME", help="detected unless given")
    parser.add_argument("--engine", choices=ENGINES, default="spark", help="default: %(default)s")
    parser.add_argument(
        "--storage-option",
        type=pair,
        action="append",
        default=[],
        metavar="K=V",
        help="for object storage (repeatable)",
    )
    return parser


def _policy() -> _Parser:
    parser = _Parser(add_help=False)
    parser.add_argument("--policy", metavar="FILE", help="policy in YAML; without it, the defaults apply")
    parser.add_argument(
        "--set",
        type=pair,
        action="append",
        default=[],
        dest="overrides",
        metavar="K=V",
        help="override (repeatable)",
    )
    return parser
