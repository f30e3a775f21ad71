"""The grammar of the command line: verbs, their options, and the values of options.

argparse rather than a richer library: it takes a tenth of the time to import, and ``dvm health`` has none to spare.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NoReturn

from dv_maintenance import __version__
from dv_maintenance.errors import UsageError

__all__ = ["parse"]


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options of a command line, with ``verb``, the function that serves it.

    Raises
    ------
    UsageError : the line makes no sense. SystemExit after ``--help`` and ``--version``.
    """
    args, unknown = _parser().parse_known_args(argv)
    if unknown:
        # A misspelt --storage-option would be quoted with its secret: name options, never values.
        options = [word.split("=", 1)[0] for word in unknown if word.startswith("-")]
        what = f"unknown option {options[0]}" if options else f"{len(unknown)} argument(s) too many"
        raise UsageError(what, next_step=f"see 'dvm {args.verb_name} --help'")
    args.verb = _load(args.verb_path)
    return args


def _duration(text: str) -> int:
    """Milliseconds."""
    from dv_maintenance.units import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _instant(text: str) -> int:
    """Epoch milliseconds."""
    from dv_maintenance.units import parse_instant

    try:
        return parse_instant(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (equals and key):
        # Without the text: it may be a secret.
        raise argparse.ArgumentTypeError("expected KEY=VALUE")
    return key, value


def _natural(text: str) -> int:
    if not re.fullmatch(r"\d{1,18}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return int(text)


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share above 0 and up to 1")
    return share


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _partition_types(text: str) -> Any:
    from dv_maintenance.cli.convert import partition_types

    return partition_types(text)


def _load(path: str) -> Callable[..., int]:
    module, _, name = path.partition(":")
    verb: Callable[..., int] = getattr(import_module(f"dv_maintenance.cli.{module}"), name)
    return verb


class _Parser(argparse.ArgumentParser):
    """argparse that raises our errors instead of printing and leaving."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, next_step=f"see '{self.prog} --help'")


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
        made.set_defaults(verb_path=path)
        return made

    health = verb(
        "health", "verbs:health", "Deletion vectors, files and rows, in total and per partition", table, access
    )
    health.add_argument("--version", type=_natural, metavar="N", help="an older version")

    read = verb("read", "rows:read", "The live rows of a table, deletion vectors applied", table, access)
    read.add_argument("--version", type=_natural, metavar="N", help="an older version")
    read.add_argument("--columns", type=_names, metavar="A,B", help="only these, in this order")
    read.add_argument("--limit", type=_natural, metavar="N", help="at most so many rows")
    read.add_argument("-o", "--output", metavar="FILE", help=".arrow, .parquet or .jsonl")

    plan = verb("plan", "verbs:plan", "What a policy would do, and why; nothing is touched", table, access, policy)
    plan.add_argument("-o", "--output", metavar="FILE", help="write the plan there, for 'dvm apply --plan'")

    apply = verb("apply", "verbs:apply", "Compact what a policy, or a saved plan, asks for", table, access, policy)
    apply.add_argument("--plan", metavar="FILE", help="run this plan instead of making one")
    apply.add_argument("--dry-run", action="store_true", help="show the plan and stop")

    purge = verb("purge", "verbs:purge", "Every deletion vector out, even a lone one", table, access)
    purge.add_argument(
        "--partition", action="append", default=[], metavar="K=V", help="only there, as health names it (repeatable)"
    )

    vacuum = verb("vacuum", "verbs:vacuum", "Delete files that no version inside retention needs", table, access)
    vacuum.add_argument("--retention", type=_duration, metavar="168h", help="instead of the table's own property")
    vacuum.add_argument("--dry-run", action="store_true", help="list what would go and stop")
    vacuum.add_argument("--lite", action="store_true", help="from the log alone, without listing the table")
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
        help="a shallow clone of the table, which it does not know of: what it needs stays (repeatable; Delta, Lance)",
    )
    vacuum.add_argument(
        "--clones-under",
        action="append",
        default=[],
        metavar="FOLDER",
        help="look there for shallow clones of the table, and protect them (repeatable; Delta, Lance)",
    )
    vacuum.add_argument(
        "--protect-version",
        type=_natural,
        action="append",
        default=[],
        metavar="N",
        help="a version that stays readable, whatever its age (repeatable)",
    )
    vacuum.add_argument(
        "--protect-stream",
        action="append",
        default=[],
        metavar="URI",
        help="the checkpoint folder of a streaming reader: what it has yet to read stays (repeatable; Delta)",
    )
    vacuum.add_argument(
        "--max-deleted-share",
        type=_share,
        metavar="0.5",
        help="refuse to delete more of the files or bytes (default: half, of what history does not know); 1 allows all",
    )

    vacuum.add_argument(
        "--quarantine", action="store_true", help="set files aside below the table instead of deleting them"
    )
    vacuum.add_argument(
        "--quarantine-retention",
        type=_duration,
        default=7 * 86_400_000,
        metavar="7d",
        help="delete what earlier runs set aside after so long (default: 7d)",
    )

    undelete = verb("undelete", "verbs:undelete", "Put back what vacuums set aside (--quarantine)", table, access)
    undelete.add_argument("--since", type=_instant, metavar="T", help="only of vacuums from then on, ISO 8601")
    undelete.add_argument("--until", type=_instant, metavar="T", help="only of vacuums up to then, ISO 8601")
    undelete.add_argument("--dry-run", action="store_true", help="count what would come back and stop")

    manifest = verb(
        "manifest", "verbs:manifest", "Symlink manifests for readers without deletion vectors", table, access
    )
    manifest.add_argument("--purge-first", action="store_true", help="purge deletion vectors if there are any")

    history = verb(
        "history", "verbs:history", "Commits, newest first, with what they did to deletion vectors", table, access
    )
    history.add_argument("--limit", type=_natural, metavar="N", help="only the newest N")

    watch = verb("watch", "verbs:watch", "One look at many tables: what changed and what is due", access)
    watch.add_argument("tables", metavar="TABLES.yaml", help="the file that lists them")
    watch.add_argument("--once", action="store_true", help="look once (watching for ever is a Dagster sensor's job)")

    doctor = verb(
        "doctor", "doctor:doctor", "What this machine lacks (Java, Spark, storage), and how to get it", access
    )
    doctor.add_argument("table", nargs="?", metavar="TABLE", help="also check that this table can be reached")
    doctor.add_argument(
        "--try-writing",
        action="store_true",
        help="also put an object into the table's store, twice, which must fail, and delete it again",
    )

    if find_spec("dv_maintenance.cli.demo"):  # a wheel leaves it out: it runs the repository's code location
        demo = verb("demo", "demo:demo", "Build tables with deletion vectors, maintain and compare them", access)
        demo.add_argument("--rows", type=_natural, default=3_000_000, metavar="N", help="default: %(default)s")
        demo.add_argument("--dir", default="demo", metavar="PATH", help="where to build it (default: %(default)s)")

    changes = verb("changes", "rows:changes", "Rows that each version inserted, deleted or updated", table, access)
    changes.add_argument("--from", type=_natural, required=True, dest="first", metavar="V", help="the first version")
    changes.add_argument("--to", type=_natural, dest="last", metavar="V", help="the last version (default: newest)")
    changes.add_argument("-o", "--output", metavar="FILE", help=".arrow, .parquet or .jsonl")

    restore = verb("restore", "verbs:restore", "Make an older version the newest again", table, access)
    point = restore.add_mutually_exclusive_group(required=True)
    point.add_argument("--version", type=_natural, metavar="N", help="that version")
    point.add_argument("--timestamp", type=_instant, metavar="T", help="the newest version at that time, ISO 8601")
    restore.add_argument("--dry-run", action="store_true", help="show what would change and stop")
    restore.add_argument(
        "--vacuum-over",
        type=_natural,
        action="append",
        default=[],
        metavar="N",
        help="the vacuum that began with version N died before its VACUUM END (repeatable)",
    )

    downgrade = verb("downgrade", "verbs:downgrade", "Give deletion vectors up, for readers without", table, access)
    downgrade.add_argument(
        "--truncate-history", action="store_true", help="delete history in the end, for old writers too (takes a day)"
    )
    downgrade.add_argument("--dry-run", action="store_true", help="show the steps and how far they are, and stop")

    checkpoint = verb("checkpoint", "verbs:checkpoint", "Sum the log up for its readers", table, access)
    checkpoint.add_argument("--clean-log", action="store_true", help="delete what is out of the table's log retention")
    checkpoint.add_argument("--dry-run", action="store_true", help="write nothing, count what would go")

    rename = verb(
        "rename-manifests",
        "verbs:rename_manifests",
        "Lance: V2 names for manifests that have V1 names. NOT SAFE beside writers: stop them all first",
        table,
        access,
    )
    rename.add_argument("--dry-run", action="store_true", help="count what would be renamed and stop")

    delete = verb("delete", "verbs:delete", "Delete rows by deletion vectors", table, access)
    delete.add_argument("--where", metavar="SQL", help="a condition in Spark SQL")
    delete.add_argument("--keys", metavar="PATH", help="keys to delete: a table, or Parquet, CSV or JSON; with --on")
    delete.add_argument("--on", type=_names, default=[], metavar="A,B", help="the columns that the keys are for")
    delete.add_argument("--dry-run", action="store_true", help="count the rows and stop")

    update = verb(
        "update", "verbs:update", "Update rows: new files replace what deletion vectors delete", table, access
    )
    update.add_argument(
        "--set", type=_pair, action="append", required=True, metavar="COL=SQL", help="column and value (repeatable)"
    )
    update.add_argument("--where", metavar="SQL", help="a condition in Spark SQL; every row without one")

    merge = verb("merge", "verbs:merge", "Update, delete and insert rows as a source says", table, access)
    merge.add_argument("--using", required=True, metavar="PATH", help="the source: a table, or Parquet, CSV or JSON")
    merge.add_argument("--on", required=True, metavar="SQL", help="which rows match: target.id = source.id")
    merge.add_argument(
        "--when",
        action="append",
        required=True,
        metavar="CLAUSE",
        help="MATCHED [AND ...] THEN UPDATE SET *, ... (repeatable, the first that holds counts)",
    )

    engine_sql = verb(
        "engine-sql",
        "verbs:engine_sql",
        "Maintenance by the table's own engine, checked by our reader",
        table,
        access,
    )
    engine_sql.add_argument("job", choices=("optimize", "purge", "vacuum"), help="what to run on the whole table")
    engine_sql.add_argument(
        "--catalog", metavar="NAME", help="the session's catalog that has a Paimon table, or catalog.database.table"
    )
    engine_sql.add_argument(
        "--spark-conf", type=_pair, action="append", default=[], metavar="K=V", help="Spark setting (repeatable)"
    )

    convert = verb("convert", "verbs:convert", "Make a table of a folder of Parquet files", table, access)
    convert.add_argument(
        "--partition-by", type=_partition_types, metavar="SQL", help="types of the folders' columns: 'day DATE, n INT'"
    )
    convert.add_argument("--dry-run", action="store_true", help="read every footer, write nothing")

    zorder = verb("zorder", "verbs:zorder", "Order files by columns, so that filters on them skip more", table, access)
    zorder.add_argument("--columns", type=_names, required=True, metavar="A,B", help="order by these, along a Z-curve")
    zorder.add_argument(
        "--partition", action="append", default=[], metavar="K=V", help="only there, as health names it (repeatable)"
    )
    zorder.add_argument("--target-file-size", metavar="256MiB", help="instead of the table's own property")
    zorder.add_argument("--dry-run", action="store_true", help="show the plan and stop")
    return parser


def _json_option() -> _Parser:
    parser = _Parser(add_help=False)
    parser.add_argument("--json", action="store_true", help="print exactly one JSON document on stdout")
    parser.add_argument(
        "-v", "--verbose", action="count", default=0, help="say on stderr what is being done; -vv: in detail"
    )
    return parser


def _table() -> _Parser:
    parser = _Parser(add_help=False)
    parser.add_argument("table", metavar="TABLE", help="path or URI")
    return parser


def _access() -> _Parser:
    # Every verb takes these, so that a script can pass the same options to all; Spark starts only for what needs it.
    parser = _Parser(add_help=False)
    parser.add_argument("--format", metavar="NAME", help="detected unless given")
    parser.add_argument("--engine", choices=("spark", "local"), default="spark", help="default: %(default)s")
    parser.add_argument(
        "--storage-option",
        type=_pair,
        action="append",
        default=[],
        metavar="K=V",
        help="for object storage (repeatable)",
    )
    return parser


def _policy() -> _Parser:
    parser = _Parser(add_help=False)
    parser.add_argument("--policy", metavar="FILE", help="policy in YAML; the defaults otherwise")
    parser.add_argument(
        "--set", type=_pair, action="append", default=[], dest="overrides", metavar="K=V", help="override (repeatable)"
    )
    return parser
