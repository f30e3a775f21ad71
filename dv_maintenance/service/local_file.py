"""Local files that others read at any time."""

from __future__ import annotations

import os
import tempfile

from dv_maintenance.errors import UsageError
from dv_maintenance.tables.nested import check_outside_tables


def replace_file(path: str, text: str) -> None:
    """Write all of a file at once: a reader finds the old one or the new one. Raises UsageError."""
    check_outside_tables(path)
    try:
        number, new = tempfile.mkstemp(prefix=".dvm-", dir=os.path.dirname(os.path.abspath(path)))
        try:
            with open(number, "w", encoding="utf-8") as file:
                file.write(text)
            # Its reader is another user; a temporary file is for its owner alone.
            os.chmod(new, 0o644)
            os.replace(new, path)
        except BaseException:
            os.unlink(new)
            raise
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", next_step="choose another file") from error
