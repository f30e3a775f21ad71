"""The output of a verb: one JSON document or text on stdout, everything else on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, Final

from dv_maintenance.cli.terminal import Terminal
from dv_maintenance.errors import DvMaintenanceError, redacted

if TYPE_CHECKING:
    from dv_maintenance.cli.progress import Progress


_CONTROLS: Final = (each for each in (*range(32), *range(0x7F, 0xA0)) if chr(each) not in "\t\n")
_SAFE: Final = str.maketrans({each: f"\\x{each:02x}" for each in _CONTROLS})


class OutputError(DvMaintenanceError):
    """stdout takes nothing more, such as a file on a full disk."""


@contextmanager
def _printing() -> Iterator[None]:
    """Raises OutputError, and BrokenPipeError if the reader is gone."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(
            f"the result could not be printed: {error.strerror}",
            done="the verb itself ended",
            next_step="see what it did ('dvm history TABLE') before you run it again",
        ) from error


class Output:
    """The two channels of one command. ``json``: stdout receives one JSON document and nothing else."""

    def __init__(self, stream: IO[str], *, json: bool) -> None:
        self.json = json
        self._stream = stream
        self.verbose = False
        self._secrets: tuple[str, ...] = ()
        self._stderr = Terminal()

    @classmethod
    @contextmanager
    def opened(cls, *, json: bool) -> Iterator[Output]:
        """With ``json``, keep the real stdout for the document and point file descriptor 1 at stderr, so that a JVM or
        a library that prints can't damage the document.
        """
        if not (json and _is_real_stdout()):
            yield cls(sys.stdout, json=json)
            return
        sys.stdout.flush()
        kept = os.dup(1)
        os.dup2(2, 1)
        try:
            with os.fdopen(os.dup(kept), "w", encoding="utf-8") as stream:
                yield cls(stream, json=json)
        except BrokenPipeError:
            pass  # from closing the stream; main() handles the one from writing
        finally:
            sys.stdout.flush()
            os.dup2(kept, 1)
            os.close(kept)

    def hide(self, secrets: Iterable[str]) -> None:
        """Never print these."""
        self._secrets = tuple(sorted((text for text in secrets if len(text) >= 8), key=len, reverse=True))

    def result(self, document: Mapping[str, Any], text: Callable[[], str]) -> None:
        """The verb's result: ``document`` under --json, else ``text()``."""
        if self.json:
            self._write_json(document)
        else:
            self.text(text())

    def text(self, text: str) -> None:
        """Lines. On a screen, control characters of names and values are escaped: they would act on it."""
        shown = text.translate(_SAFE) if self.on_terminal else text
        self._write(shown.rstrip("\n") + "\n")

    @property
    def on_terminal(self) -> bool:
        """Whether a person reads stdout on a screen."""
        return self._stream.isatty() and os.environ.get("TERM") != "dumb"

    def draw(self, render: Callable[[IO[str]], None]) -> None:
        """What the terminal shows instead of text."""
        with _printing():
            render(self._stream)

    def note(self, text: str) -> None:
        """A line on stderr, above the line of progress if there is one."""
        self._stderr.line(text.translate(_SAFE))

    def failure(self, error: DvMaintenanceError) -> None:
        self.note(f"dvm: {self.redacted(str(error))}")
        self._document_of_failure({key: self._clean(value) for key, value in error.to_json().items()})

    def unexpected(self, error: Exception) -> None:
        """An error outside the DvMaintenanceError family: one line, and how to see more."""
        message = self.redacted(" ".join(str(error).split()) or "no message")
        self.note(f"dvm: {type(error).__name__}: {message[:500]} (DVM_DEBUG=1 shows where)")
        self._document_of_failure(
            {
                "error": type(error).__name__,
                "message": message,
                "table": None,
                "version": None,
                "done": "unknown",
                "next_step": "run again with DVM_DEBUG=1 and report what it shows",
                "retryable": False,
            }
        )

    def _document_of_failure(self, document: Mapping[str, Any]) -> None:
        try:
            if self.json:
                self._write_json(document)
            self.flush()
        except OutputError:
            self.abandon()  # the line on stderr has said it

    @contextmanager
    def progress(self, what: str, unit: str = "rewrites") -> Iterator[Progress]:
        """Show on stderr what the verb does: as one line on a terminal, elsewhere every ten seconds. Lines of the JVM
        and of libraries appear above it, without those that every start of Spark prints (unless ``verbose``).

        unit : what the callback, ``step(done, total)``, counts.
        """
        from dv_maintenance.cli.jvm_noise import child_lines
        from dv_maintenance.cli.progress import Progress

        progress = Progress(what, unit)
        if not _is_real(sys.stderr, 2):
            with progress.shown(self._stderr):
                yield progress
            return
        with child_lines(lambda line: self.note(self.redacted(line)), routine=self.verbose) as stream:
            self._stderr.stream = stream
            try:
                with progress.shown(self._stderr):
                    yield progress
            finally:
                self._stderr.stream = None

    def flush(self) -> None:
        with _printing():
            self._stream.flush()

    def abandon(self) -> None:
        """The reader is gone: keep the interpreter's last flush from failing too."""
        if _is_real_stdout():
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, self._stream.fileno())
            os.close(nothing)

    def _write_json(self, document: Mapping[str, Any]) -> None:
        self._write(dump_json(document))

    def _write(self, text: str) -> None:
        with _printing():
            self._stream.write(text)

    def _clean(self, value: Any) -> Any:
        return self.redacted(value) if isinstance(value, str) else value

    def redacted(self, text: str) -> str:
        """The text without storage options and without secrets in URLs. Bytes of arguments that are not UTF-8 are
        escaped.
        """
        text = text.encode(errors="backslashreplace").decode()
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return redacted(text)


def _is_real_stdout() -> bool:
    return _is_real(sys.stdout, 1)


def _is_real(stream: IO[str], number: int) -> bool:
    try:
        return stream.fileno() == number
    except (AttributeError, OSError, ValueError):
        return False


def dump_json(document: Mapping[str, Any]) -> str:
    import orjson

    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode() + "\n"


def read_file(path: str | None) -> str | None:
    """The text of a file; ``None`` without one. Raises UsageError if it can't be read."""
    from dv_maintenance.errors import UsageError

    if path is None:
        return None
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(f"cannot read {path}: {reason}", next_step="choose another file") from error


def write_file(path: str, text: str) -> None:
    """Write a file. It appears whole or not at all, also in place of an older one. Raises UsageError if it can't be
    written.
    """
    import tempfile
    from contextlib import suppress

    from dv_maintenance.errors import UsageError
    from dv_maintenance.tables.nested import check_outside_tables

    check_outside_tables(path)
    target = os.path.realpath(path)
    try:
        if os.path.exists(path) and not (os.path.isfile(path) and os.access(os.path.dirname(target), os.W_OK)):
            with open(path, "w", encoding="utf-8") as file:  # a pipe; or a file in a folder of somebody else
                file.write(text)
            return
        handle, temporary = tempfile.mkstemp(prefix=".", dir=os.path.dirname(target))
        try:
            with open(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(temporary, os.stat(target).st_mode & 0o777 if os.path.exists(target) else 0o666 & ~_umask())
            os.replace(temporary, target)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", next_step="choose another file") from error


def _umask() -> int:
    now = os.umask(0)
    os.umask(now)
    return now


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], *, left: int | Container[int] = 1) -> str:
    """Aligned columns. Plain: importing rich takes longer than most verbs.

    left : the columns that are flush left, by number; or how many, from the first.
    """
    flush = range(left) if isinstance(left, int) else left
    cells = [list(head), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    lines = []
    for row in cells:
        parts = [
            cell.ljust(width) if column in flush else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(parts).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def count(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"


def bytes_text(size: int | None) -> str:
    """A size in binary units."""
    from dv_maintenance.units import format_size

    return "?" if size is None else format_size(size)
