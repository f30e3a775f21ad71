"""Processes that permissions apply to, also where tests run as root."""

from __future__ import annotations

import os
import shutil

__all__ = ["obeying_permissions", "permissions_apply"]

_IGNORING = "-dac_override,-dac_read_search"


def obeying_permissions() -> list[str]:
    """Put before a command: root's right to read and write everything is gone in it."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        return []
    return ["setpriv", f"--bounding-set={_IGNORING}", f"--inh-caps={_IGNORING}"]


def permissions_apply() -> bool:
    """Whether they do in a process that :func:`obeying_permissions` started."""
    return os.geteuid() != 0 or bool(obeying_permissions())
