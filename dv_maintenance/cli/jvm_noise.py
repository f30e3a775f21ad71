"""What the JVM prints while Spark starts: kept out of the line of progress, and its routine messages out of sight."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import IO, Final

# Printed at every start, whatever is wrong or right: the launcher's option for vector instructions, Spark's own level
# of logging, and what newer Javas say about Spark's dependencies. And PySpark's own record, with a trace, of an
# expression that Spark does not understand: the error says it in one line.
_ROUTINE: Final = re.compile(
    r"WARNING: Using incubator modules: jdk\.incubator\.vector$"
    r"|Setting (default|Spark) log level to \"\w+\"\.$"
    r"|To adjust logging level use sc\.setLogLevel"
    r"|\{\"ts\": .*\"logger\": \"SQLQueryContextLogger\""
    r"|WARNING: (A terminally deprecated method in (java\.lang|sun\.misc)\.|sun\.misc\.Unsafe::"
    r"|A restricted method in java\.lang\.|java\.lang\.System::load|Use --enable-native-access="
    r"|Restricted methods will be blocked|Please consider reporting this to the maintainers of class )"
)
_END: Final = b"\0dvm: the end of this command's lines\n"


@contextmanager
def child_lines(line: Callable[[str], None], *, routine: bool) -> Iterator[IO[str]]:
    """While it is open, pass each line that anybody writes to file descriptor 2 (the JVM, Python workers, libraries) to
    ``line``, one at a time. Yields a stream on the real stderr.

    routine : also pass the messages that every start prints.
    """
    sys.stderr.flush()
    real = os.dup(2)
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)

    def pump() -> None:
        with os.fdopen(reading, "rb") as pipe:
            for raw in pipe:
                text = raw.removesuffix(_END).decode("utf-8", "replace").rstrip("\r\n")
                if text and (routine or not _ROUTINE.match(text)):
                    line(text)
                if raw.endswith(_END):
                    return

    with os.fdopen(os.dup(real), "w", encoding="utf-8", errors="replace") as stream:
        thread = Thread(target=pump, name="dvm-stderr", daemon=True)
        thread.start()
        try:
            yield stream
        finally:
            try:
                sys.stderr.flush()
                # A JVM keeps its end of the pipe until this process exits: the end of the lines has to be marked.
                os.write(2, _END)
                thread.join()
            finally:
                os.dup2(real, 2)
                os.close(real)
