"""Paimon's own package for Python, the newest Paimon that can be had: a writer and a reader of its own process."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

__all__ = ["PyPaimon", "PyPaimonError"]


class PyPaimonError(Exception):
    """What it said."""


class PyPaimon:
    """See ``pypaimon_worker.Worker`` for what it does.

    more : folders of packages that its environment lacks.
    """

    def __init__(self, python: Path, *more: Path) -> None:
        self._python, self._more = python, more
        self._process = self._begun()

    def _begun(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(self._python), str(Path(__file__).parent / "pypaimon_worker.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, self._more))},
        )

    def __call__(self, do: str, table: Path, **arguments: Any) -> Any:
        """Tables are at ``WAREHOUSE/DATABASE.db/TABLE``. Raises PyPaimonError, also if the process ends; the next call
        begins another one.
        """
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps({"do": do, "path": str(table), **arguments}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            self._process = self._begun()
            raise PyPaimonError(f"it ended with {code}")
        answer = json.loads(line)
        if "error" in answer:
            raise PyPaimonError(answer["error"])
        return answer["answer"]

    def close(self) -> None:
        self._process.communicate()
