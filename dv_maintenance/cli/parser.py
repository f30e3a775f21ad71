"""What can be typed: verbs, their options, and the values options take.

argparse rather than a richer library: it takes a tenth of the time to import, and ``dvm health`` has none to spare.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from importlib import import_module
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
        # A misspelt --storage-option would otherwise be quoted with its secret: name options, never values.
        options = [word.split("=", 1)[0] for word in unknown if word.startswith("-")]
        what = f"unknown option {options[0]}" if options else f"{len(unknown)} argument(s) too many"
        raise UsageError(what, next_step=f"see 'dvm {args.verb_name} --help'")
    args.verb = _load(args.verb_path)
    return args


def _duration(text: str) -> int:
    """Milliseconds."""
    from dv_maintenance.config import parse_duration

    try:
        return parse_duration(text)
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


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


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
        "health", "look:health", "Deletion vectors, files and rows, in total and per partition", table, access
    )
    health.add_argument("--version", type=_natural, metavar="N", help="an older version")

    read = verb("read", "rows:read", "The live rows of a table, deletion vectors applied", table, access)
    read.add_argument("--version", type=_natural, metavar="N", help="an older version")
    read.add_argument("--columns", type=_names, metavar="A,B", help="only these, in this order")
    read.add_argument("--limit", type=_natural, metavar="N", help="at most so many rows")
    read.add_argument("-o", "--output", metavar="FILE", help=".arrow, .parquet or .jsonl")

    plan = verb("plan", "look:plan", "What a policy would do, and why; nothing is touched", table, access, policy)
    plan.add_argument("-o", "--output", metavar="FILE", help="write the plan there, for 'dvm apply --plan'")

    apply = verb("apply", "work:apply", "Compact what a policy, or a saved plan, asks for", table, access, policy)
    apply.add_argument("--plan", metavar="FILE", help="run this plan instead of making one")
    apply.add_argument("--dry-run", action="store_true", help="show the plan and stop")

    purge = verb("purge", "work:purge", "Every deletion vector out, even a lone one", table, access)
    purge.add_argument(
        "--partition", action="append", default=[], metavar="K=V", help="only there, as health names it (repeatable)"
    )

    vacuum = verb("vacuum", "work:vacuum", "Delete files that no version inside retention needs", table, access)
    vacuum.add_argument("--retention", type=_duration, metavar="168h", help="instead of the table's own property")
    vacuum.add_argument("--dry-run", action="store_true", help="list what would go and stop")
    vacuum.add_argument("--lite", action="store_true", help="from the log alone, without listing the table")
    vacuum.add_argument(
        "--allow-short-retention",
        action="store_true",
        help="accept a --retention below the table's property: running readers and time travel may break",
    )

    manifest = verb(
        "manifest", "work:manifest", "Symlink manifests for readers without deletion vectors", table, access
    )
    manifest.add_argument("--purge-first", action="store_true", help="purge deletion vectors if there are any")

    history = verb(
        "history", "look:history", "Commits, newest first, with what they did to deletion vectors", table, access
    )
    history.add_argument("--limit", type=_natural, metavar="N", help="only the newest N")

    watch = verb("watch", "look:watch", "One look at many tables: what changed and what is due", access)
    watch.add_argument("tables", metavar="TABLES.yaml", help="the file that lists them")
    watch.add_argument("--once", action="store_true", help="look once (watching for ever is a Dagster sensor's job)")

    doctor = verb(
        "doctor", "doctor:doctor", "What this machine lacks (Java, Spark, storage), and how to get it", access
    )
    doctor.add_argument("table", nargs="?", metavar="TABLE", help="also check that this table can be reached")

    demo = verb("demo", "demo:demo", "Build three tables with deletion vectors, maintain and compare them", access)
    demo.add_argument("--rows", type=_natural, default=3_000_000, metavar="N", help="default: %(default)s")
    demo.add_argument("--dir", default="demo", metavar="PATH", help="where to build it (default: %(default)s)")
    return parser


def _json_option() -> _Parser:
    parser = _Parser(add_help=False)
    parser.add_argument("--json", action="store_true", help="print exactly one JSON document on stdout")
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
