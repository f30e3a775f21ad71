"""The ``dvm`` command. Each verb runs one verb of ``dv_maintenance.service`` and prints its outcome.

Nothing heavy is imported before the verb is known, and then only what that verb needs.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from dv_maintenance.errors import DvMaintenanceError

if TYPE_CHECKING:
    from dv_maintenance.cli.output import Output

# Not "run it again": an UPDATE that was committed before the interruption would apply twice.
_STANDS = "earlier commits stand; no commit is half done"
_ONLY_THE_REST = "dvm history TABLE lists them; run the command again only for what is left"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code: 0 done or nothing to do, 1 failed, 2 usage, 3 refused,
    4 conflict, 5 damaged, 130 interrupted, 143 terminated.
    """
    try:
        if argv is None:  # the whole process is this command
            _open_standard_streams()
            _end_in_order()
            _start_fast()
        return _run(sys.argv[1:] if argv is None else list(argv))
    except KeyboardInterrupt as stop:  # before the verb began, or after it ended
        sys.stderr.write("dvm: interrupted\n")
        return _code_of(stop)


def _run(argv: Sequence[str]) -> int:
    from dv_maintenance.cli.logs import logged
    from dv_maintenance.cli.output import Output
    from dv_maintenance.cli.parser import parse
    from dv_maintenance.remedies import speaking

    with speaking("cli"), Output.opened(json="--json" in argv) as out:
        table = None
        try:
            args = parse(argv)
            table = getattr(args, "table", None)
            with logged(out, args.verbose):
                code: int = args.verb(args, out)
            out.flush()
        except SystemExit as done:  # --help and --version
            return done.code if isinstance(done.code, int) else 0
        except KeyboardInterrupt as stop:
            stands = "; ".join(getattr(stop, "__notes__", ())) or _STANDS
            out.failure(DvMaintenanceError("interrupted", done=stands, next_step=_ONLY_THE_REST))
            return _code_of(stop)
        except BrokenPipeError:
            # The reader has closed the pipe (`| head`): not a failure.
            out.abandon()
            return 0
        except DvMaintenanceError as error:
            _trace_if_debugging(out)
            if isinstance(table, str):
                error.table = error.table or table
            out.failure(error)
            return error.exit_code
        except Exception as error:  # noqa: BLE001 (one line instead of a traceback)
            from dv_maintenance.resources import out_of_resources

            _trace_if_debugging(out)
            if (refused := out_of_resources(error)) is not None:
                out.failure(refused)
                return refused.exit_code
            if isinstance(error, FileNotFoundError):
                out.failure(_gone(error, table if isinstance(table, str) else None))
                return 1
            out.unexpected(error)
            return 1
        return code


def _open_standard_streams() -> None:
    """Open those that were closed (``dvm purge T >&-``) on nothing. Otherwise the next file that is opened, such as a
    data file, takes the number of one, and whatever a library prints there ends up in that file.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False))  # noqa: SIM115


class _Terminated(KeyboardInterrupt):
    """By SIGTERM: an orchestrator cancels the run, a node is drained, or ``timeout`` has had enough."""


def _end_in_order() -> None:
    """Let SIGTERM end the command as Ctrl-C does: files that nothing needs are deleted, and the message says what
    stands. A second one ends it at once. Whoever started the command may have chosen to ignore the signal.
    """

    def terminated(*_: object) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise _Terminated

    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, terminated)


def _code_of(stop: KeyboardInterrupt) -> int:
    """128 and the number of the signal, as shells have it."""
    return 128 + (signal.SIGTERM if isinstance(stop, _Terminated) else signal.SIGINT)


def _start_fast() -> None:
    """Settings of a process that runs one short command. To be called before NumPy is imported.

    Garbage is collected rarely, and not at exit: what imports create lives until then, and searching it again and again
    takes a tenth of the time. Pydantic does not search all installed packages for plugins. NumPy starts no threads for
    linear algebra, which nothing here uses: they would poll for work longer than a short command runs.
    """
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.set_threshold(100_000, 50, 50)
    atexit.register(gc.freeze)


def _gone(error: FileNotFoundError, table: str | None) -> DvMaintenanceError:
    """The error for a file that vanished while a verb worked."""
    what = " ".join(str(error).partition("\n\nDebug source")[0].split())
    return DvMaintenanceError(
        f"a file is gone that was there before: {what}",
        table=table,
        done="unknown; dvm history TABLE lists the commits",
        next_step="see whether somebody deletes files of the table, or has dropped it; then run again",
    )


def _trace_if_debugging(out: Output) -> None:
    if os.environ.get("DVM_DEBUG", "0") not in {"", "0"}:
        import traceback

        out.note(out.redacted(traceback.format_exc().rstrip("\n")))
