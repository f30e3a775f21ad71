"""Interpreters for Spark's workers that lack something."""

from __future__ import annotations

import sysconfig
import venv
from pathlib import Path

__all__ = ["bare_python", "empty_python", "other_python"]


def empty_python(home: Path) -> Path:
    """A Python with its standard library."""
    venv.create(home, symlinks=True)
    return home / "bin" / "python"


def bare_python(home: Path) -> Path:
    """A Python with all that is installed here but this package."""
    python = empty_python(home)
    # A .pth file inside a folder that a .pth file names is not read: what is installed as editable stays out.
    (_packages(home) / "others.pth").write_text(sysconfig.get_path("purelib"))
    return python


def other_python(home: Path, version: str) -> Path:
    """As :func:`bare_python`, with another version of this package."""
    python = bare_python(home)
    package = _packages(home) / "dv_maintenance"
    package.mkdir()
    (package / "__init__.py").write_text(f"__version__ = {version!r}\n")
    return python


def _packages(home: Path) -> Path:
    [site] = home.glob("lib/python*/site-packages")
    return site
