"""A Dagster of our own: ``dagster dev`` with daemon and page on a free port, ended with everything it started."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import yaml

__all__ = ["Dagster", "wait_for"]

_CHECKOUT = Path(__file__).parents[2]
_SECONDS_TO_START = 120
_SECONDS_TO_STOP = 20


def wait_for(what: str, found: Callable[[], Any], *, seconds: float = 240) -> Any:
    """The first true answer of ``found``. Raises TimeoutError that says what was missed."""
    end = time.monotonic() + seconds
    while not (answer := found()):
        if time.monotonic() > end:
            raise TimeoutError(f"waited {seconds:g} s for {what}")
        time.sleep(0.5)
    return answer


class Dagster:
    """The repository's own code location, ``workspace.yaml``, over the tables of ``tables_file``.

    ``home`` becomes the instance's folder; its settings are those of ``sensors/dagster.yaml``, with one run at a time,
    and no welcome dialog.
    """

    def __init__(self, home: Path, tables_file: Path) -> None:
        self.home = home
        self.tables_file = tables_file
        self.log = home / "dagster-dev.log"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{probe.getsockname()[1]}"

    def __enter__(self) -> Self:
        self.home.mkdir(parents=True)
        settings = yaml.safe_load((_CHECKOUT / "sensors" / "dagster.yaml").read_text(encoding="utf-8"))
        settings["concurrency"]["runs"]["max_concurrent_runs"] = 1
        settings |= {"telemetry": {"enabled": False}, "nux": {"enabled": False}}
        (self.home / "dagster.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
        port = self.url.rsplit(":", 1)[1]
        command = [sys.executable, "-m", "dagster", "dev", "-w", "workspace.yaml", "-h", "127.0.0.1", "-p", port]
        environment = os.environ | {"DAGSTER_HOME": str(self.home), "DVM_TABLES": str(self.tables_file)}
        with self.log.open("wb") as log:
            # A session of its own, so that it ends together with its servers and runs.
            self.process = subprocess.Popen(
                command, cwd=_CHECKOUT, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        try:
            wait_for("dagster dev", self._is_up, seconds=_SECONDS_TO_START)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for sign in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, sign)
                self.process.wait(_SECONDS_TO_STOP)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        """Ask the page's own GraphQL API. Raises RuntimeError for what it refuses."""
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(f"{self.url}/graphql", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            found = json.load(answer)
        if found.get("errors"):
            raise RuntimeError(found["errors"])
        return dict(found["data"])

    def observations(self, asset: str) -> int:
        """How often a table was observed."""
        query = "query($k: AssetKeyInput!) {assetOrError(assetKey: $k) {... on Asset {assetObservations {timestamp}}}}"
        return len(self.ask(query, k={"path": asset.split("/")})["assetOrError"].get("assetObservations", ()))

    def runs(self) -> list[dict[str, Any]]:
        """Every run, the newest first: id, status, and assets as ``shop/orders/dv/orders_optimize``."""
        query = "{runsOrError {... on Runs {results {id status assetSelection {path}}}}}"
        return [
            {**run, "assets": ["/".join(key["path"]) for key in run["assetSelection"] or ()]}
            for run in self.ask(query)["runsOrError"]["results"]
        ]

    def _is_up(self) -> bool:
        if self.process.poll() is not None:
            raise RuntimeError(f"dagster dev ended:\n{self.log.read_text(encoding='utf-8')[-4000:]}")
        try:
            nodes = self.ask("{assetNodes {id}}")["assetNodes"]
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            return False
        return len(nodes) > 0
