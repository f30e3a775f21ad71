"""A folder that nobody may write, not even root: mounted for reading, or without the right to write."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

__all__ = ["read_only"]


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Root gets a mount of the folder over itself (EROFS), everybody else a folder without write bits (EACCES)."""
    if os.geteuid() != 0:
        mode = folder.stat().st_mode
        folder.chmod(0o555)
        try:
            yield
        finally:
            folder.chmod(mode)
        return
    place = str(folder)
    if subprocess.run(["mount", "--bind", place, place], capture_output=True, check=False).returncode:
        pytest.skip("this root may not mount, so nothing keeps it from writing")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", place], check=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)
