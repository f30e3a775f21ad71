"""A page of the documentation as a stranger follows it: its files written, its commands run by a shell, in order."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.places import ROOT

__all__ = ["UV", "Walk", "build"]

UV = shutil.which("uv") or str(ROOT / ".cache" / "uv" / "bin" / "uv")
_BLOCK = re.compile(r"^```(console|python|toml|yaml)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_WARNING = re.compile(r"\b(Preview|Beta|Deprecation|Future|User)Warning: ")
# Its own use of its own parameter, for the checks of any YAML component.
_OF_DAGSTER = "Parameter `execution_type` of function `AssetsDefinition.__init__`"
_MINUTES = 60.0


def clean_environment() -> dict[str, str]:
    """This process's, without its own Python environment; ``uv`` is found."""
    own = {str(Path(sys.executable).parent), str(Path(sys.prefix) / "bin")}
    paths = [path for path in os.environ["PATH"].split(os.pathsep) if path not in own]
    left_out = {"VIRTUAL_ENV", "PYTHONPATH", "DAGSTER_HOME", "UV_PROJECT_ENVIRONMENT"}
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    return {**kept, "PATH": os.pathsep.join([str(Path(UV).parent), *paths]), "DAGSTER_DISABLE_TELEMETRY": "yes"}


def build(folder: Path, *kinds: str, source: Path = ROOT, **environment: str) -> list[Path]:
    """The distributions (``--sdist``, ``--wheel``; both by default) of a source tree."""
    subprocess.run(
        [UV, "build", "--quiet", *kinds, "--out-dir", str(folder), str(source)],
        env={**clean_environment(), **environment},
        check=True,
    )
    return sorted(path for path in folder.iterdir() if path.suffix in {".gz", ".whl"})


class Walk:
    """The blocks of a page, done below ``folder``, next to what our source distribution holds."""

    def __init__(self, page: Path, folder: Path) -> None:
        self.page = page
        self.cwd = folder
        self.said = ""
        self.url = ""
        self._blocks = iter(_BLOCK.findall(page.read_text(encoding="utf-8")))
        self._environment = clean_environment()
        (distribution,) = build(folder / "dist", "--sdist")
        shutil.unpack_archive(distribution, folder / "unpacked")
        (unpacked,) = (folder / "unpacked").iterdir()
        unpacked.rename(folder / "dv_maintenance")

    def until(self, command: str | None = None) -> str | None:
        """Do the next blocks, up to the line that has ``command``; that line is returned, and not run."""
        for language, text in self._blocks:
            if language != "console":
                file = self.cwd / text.splitlines()[0].removeprefix("# ")
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
                continue
            for line in text.splitlines():
                if command is not None and command in line:
                    return line.removeprefix("$ ")
                self.run(line.removeprefix("$ "))
        return None

    def run(self, line: str) -> str:
        """One line in the shell, which keeps its folder and variables for the next one. It has to succeed, and to warn
        of nothing.
        """
        state = self.cwd / ".walk"
        done = subprocess.run(
            ["bash", "-c", f'{line}\nstatus=$?\npwd >{state}\nprintf %s "$DAGSTER_HOME" >>{state}\nexit $status'],
            cwd=self.cwd,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=20 * _MINUTES,
        )
        self.said += f"$ {line}\n{done.stdout}"
        assert done.returncode == 0, f"{line}\n{done.stdout[-4000:]}"
        warned = [each for each in done.stdout.splitlines() if _WARNING.search(each) and _OF_DAGSTER not in each]
        assert warned == [], line
        cwd, _, home = state.read_text(encoding="utf-8").partition("\n")
        state.unlink()
        self.cwd = Path(cwd)
        self._environment |= {"DAGSTER_HOME": home} if home else {}
        return done.stdout

    @contextmanager
    def serving(self, line: str) -> Iterator[None]:
        """Meanwhile ``dg dev`` runs, on a free port; its page answers at ``url``."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        with (self.cwd / "dev.log").open("wb") as log:
            # A session of its own, so that it ends together with its servers and runs.
            process = subprocess.Popen(
                ["bash", "-c", f"exec {line} -p {port}"],
                cwd=self.cwd,
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                self._wait(process)
                yield
            finally:
                for sign in (signal.SIGTERM, signal.SIGKILL):
                    try:
                        os.killpg(process.pid, sign)
                        process.wait(20)
                    except (ProcessLookupError, subprocess.TimeoutExpired):
                        continue

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        end = time.monotonic() + 3 * _MINUTES
        while True:
            try:
                urllib.request.urlopen(f"{self.url}/server_info", timeout=10).close()
            except (urllib.error.URLError, TimeoutError, ConnectionError):
                log = (self.cwd / "dev.log").read_text(encoding="utf-8")[-4000:]
                assert process.poll() is None, log
                assert time.monotonic() < end, log
                time.sleep(0.5)
            else:
                return
