"""Copies in a local folder, for libraries that open places and not files."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


@contextmanager
def copied(file: pa.NativeFile) -> Iterator[str]:
    """The path of a copy of the file."""
    with TemporaryDirectory(prefix="dv-maintenance-") as folder:
        path = Path(folder, "old")
        file.seek(0)
        with path.open("wb") as target:
            shutil.copyfileobj(file, target)
        yield str(path)


def write_copied(write: Callable[[str], object], sink: Any) -> None:
    """Pass on what is written to a path."""
    with TemporaryDirectory(prefix="dv-maintenance-") as folder:
        path = Path(folder, "new")
        write(str(path))
        with path.open("rb") as written:
            shutil.copyfileobj(written, sink)
