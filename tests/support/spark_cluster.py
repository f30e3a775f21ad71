"""A Spark cluster of our own, on the loopback: PySpark brings its master and workers."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.sessions import CHEAP

__all__ = ["SETTINGS", "Cluster", "spark_cluster"]

# As in conftest: the start of a JVM is most of its time.
_SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
_DAEMON = [
    "-Xmx256m",
    *_SHORT_LIVED.split(),
    "-Dspark.master.rest.enabled=false",  # whoever reaches that server may run anything
]
SETTINGS = {
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": _SHORT_LIVED,
    **CHEAP,
}
_PATIENCE = 60


@dataclass(frozen=True)
class Cluster:
    """A master, and workers with one core each.

    url : the master's.
    home : where the processes log, and what the executors wrote.
    """

    url: str
    home: Path

    def executors(self) -> list[int]:
        """The processes of all executors that run now."""
        return [pid for pid in _children(self.home) if b"CoarseGrainedExecutorBackend" in _command(pid)]

    def python_workers(self, executor: int | None = None) -> list[int]:
        """Python processes of all executors or of one, including those that only fork others."""
        found = [pid for pid in _children(self.home) if b"pyspark.daemon" in _command(pid)]
        family: set[int | None] = {executor}
        while grown := {pid for pid in found if _parent(pid) in family} - family:
            family |= grown
        return [pid for pid in found if executor is None or pid in family]

    def environment(self) -> dict[str, str]:
        """For a driver: nothing that would lead the workers to this interpreter."""
        return _environment() | {"HOME": os.environ.get("HOME", "/"), "SPARK_SUBMIT_OPTS": _SHORT_LIVED}


@contextmanager
def spark_cluster(home: Path, workers: int = 2) -> Iterator[Cluster]:
    """Ends all its processes, those of executors included."""
    with ExitStack() as stack:
        master = _daemon(stack, home, "master", "127.0.0.1", ["master.Master", "--port", "0"])
        url = _awaited(lambda: re.search(r"Starting Spark master at (spark://\S+)", _text(master)), master)[1]
        for number in range(workers):
            work = ["--cores", "1", "--memory", "1g", "--work-dir", str(home / "work"), "--port", "0"]
            # An address of its own: Spark starts the copy of a slow task only on another host.
            _daemon(stack, home, f"worker-{number}", f"127.0.0.{2 + number}", ["worker.Worker", *work, url])
        _awaited(lambda: _text(master).count("Registering worker") == workers, master)
        yield Cluster(url, home)


def _daemon(stack: ExitStack, home: Path, name: str, host: str, arguments: list[str]) -> Path:
    """Starts a process, and returns the file in which it logs."""
    import pyspark

    jars = str(Path(pyspark.__file__).parent / "jars" / "*")
    java = os.path.join(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else "java"
    main, *rest = arguments
    command = [java, *_DAEMON, "-cp", jars, f"org.apache.spark.deploy.{main}", "--host", host]
    log = home / f"{name}.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, "--webui-port", "0", *rest],
            stdout=output,
            stderr=output,
            cwd=home,
            env=_environment() | {"SPARK_LOCAL_IP": host},
        )
    stack.callback(_end, process, home)
    return log


def _end(process: subprocess.Popen[bytes], home: Path) -> None:
    process.terminate()
    process.wait()
    for pid in _children(home):  # an executor outlives its worker by some seconds
        if b"CoarseGrainedExecutorBackend" in _command(pid):
            os.kill(pid, signal.SIGKILL)


def _environment() -> dict[str, str]:
    """What ``spark-class`` would set, and nothing that leads to this interpreter."""
    import pyspark

    home = Path(pyspark.__file__).parent
    [scala] = home.glob("jars/scala-library-*.jar")
    java = shutil.which("java")
    path = ["/usr/local/bin", "/usr/bin", "/bin", *([str(Path(java).parent)] if java else [])]
    return {
        **{key: os.environ[key] for key in ("JAVA_HOME", "LANG") if key in os.environ},
        "PATH": ":".join(path),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SCALA_VERSION": ".".join(scala.stem.removeprefix("scala-library-").split(".")[:2]),
    }


def _children(home: Path) -> list[int]:
    """Processes that work in the cluster's folder."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            where = os.readlink(f"/proc/{pid}/cwd")
        except OSError:  # gone, or another user's
            continue
        if Path(where).is_relative_to(home):
            found.append(int(pid))
    return found


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _text(log: Path) -> str:
    return log.read_text(errors="replace")


def _awaited(condition: Callable[[], Any], log: Path) -> Any:
    end = time.monotonic() + _PATIENCE
    while not (found := condition()):
        assert time.monotonic() < end, _text(log)
        time.sleep(0.05)
    return found
