"""Fixtures every test may use: golden tables, one Spark session per worker, and the judges."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
import shutil
import sys
import threading
import warnings
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from effort import examples
from golden_tables import NotThere
from hypothesis import settings
from support.object_stores import AZURITE, KEYS, S3PROXY, Store, azurite, s3proxy
from support.places import (
    CLASSES,
    GOLDEN,
    ICEBERG,
    JARS,
    JUDGED_SPARK,
    PAIMON,
    PYPAIMON,
    PYPAIMON_FORMATS,
    SEARCHES,
    SQLITE,
)
from support.real_unity import UC_SERVER, RealUnity, real_unity
from support.sessions import CHEAP
from support.unity_judges import Kernel, kernel_jars

from dv_maintenance.remedies import speak

if TYPE_CHECKING:
    from pypaimon_judge import PyPaimon
    from pyspark.sql import SparkSession
    from support.paimon_engine import PaimonEngine


# Of every JVM that a test starts: most of their time is their start. Compiling Spark's code a second time, for speed,
# costs as much as all tests do, and verifying its classes a seventh of a session of ten statements. The simple
# compiler's cache of 48 MiB is too small for the judges: a full one ends all compiling. Several threads that collect
# garbage do not pay off on two cores, nor does collecting all of it each time that a small heap has to grow.
_JVM = (
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC -Xms1g -Xmn400m -XX:MetaspaceSize=300m "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
# Searching Spark's 300 jars for classes takes a quarter of a session's first minutes. An archive that does not fit is
# ignored, and must not be spoken of on the standard output.
if CLASSES.is_file():
    _JVM += f" -XX:SharedArchiveFile={CLASSES} -Xlog:disable -Xlog:all=error:stderr"
os.environ.setdefault("SPARK_SUBMIT_OPTS", _JVM)

# A slow example on a busy machine is not a failure. Properties without a number of their own take no more than 100.
settings.register_profile("tests", deadline=None, max_examples=min(100, examples(100)))
settings.load_profile("tests")


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None]:
    """Whatever asks for the Spark session needs a JVM, whatever asks for Airflow's environment or for S3 starts
    processes or a server; what starts one by another way says so itself. ``scripts/slow_tests`` measures what is slow.
    """
    slow = set((Path(__file__).parent / "slow.txt").read_text().splitlines())
    for item in items:
        if item.nodeid.partition("[")[0] in slow:
            item.add_marker("slow")
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("jvm")
        if {"airflow_environment", "azure", "other_s3", "s3", "uc_server"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("processes")
    yield
    items[:] = _dealt(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Thousands of tests and their modules stay: no collection of garbage goes through them, now or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _dealt(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """In an order that begins the first share with all tests of the Spark session: a JVM that others have warmed up
    takes half the time. Tests with a JVM of their own begin the second share, those that wait for processes the third;
    the many short ones even out the end.

    xdist's ``worksteal`` cuts the list into equal shares, one after the other, for workers in any order.
    """
    heads: list[list[pytest.Item]] = [[], [], []]
    short: list[pytest.Item] = []
    for item in items:
        turn = _turn(item)
        (short if turn is None else heads[min(turn, workers - 1)]).append(item)
    dealt: list[pytest.Item] = []
    for worker in range(min(workers, len(heads))):
        share = (len(items) - len(dealt)) // (workers - worker)
        filling = max(0, share - len(heads[worker]))
        dealt += [*heads[worker], *short[:filling]]
        short = short[filling:]
    return dealt + short


def _turn(item: pytest.Item) -> int | None:
    if "spark" in getattr(item, "fixturenames", ()):
        return 0
    return next((turn for turn, mark in ((1, "jvm"), (2, "processes")) if item.get_closest_marker(mark)), None)


_SHARE_BEGUN = pytest.StashKey[bool]()


def _begin_share(item: pytest.Item) -> None:
    """Workers yield to the one whose share begins with the Spark session, or they would be through first, and start
    JVMs for what is left.
    """
    if "PYTEST_XDIST_WORKER" in os.environ and not item.config.stash.get(_SHARE_BEGUN, False):
        item.config.stash[_SHARE_BEGUN] = True
        if _turn(item) != 0:
            os.nice(19)


def missing(what: str, how: str) -> NoReturn:
    """Skip loudly on a user's machine, fail where CI is set: a judge that stays silent has not agreed."""
    if os.environ.get("CI"):
        pytest.fail(f"{what} is missing: {how}")
    warnings.warn(f"NOT JUDGED: {what} is missing: {how}", stacklevel=2)
    pytest.skip(f"{what} is missing: {how}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Parameters of a golden folder that is missing: see ``golden_tables``."""
    _begin_share(item)
    speak("dagster" if "dagster" in item.path.parent.parts[-1:] else "python")
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    for folder in [value for value in parameters.values() if isinstance(value, NotThere)]:
        missing(f"the folder {folder} of the golden tables", "set DVM_GOLDEN to their folder")


@pytest.fixture(scope="session")
def golden() -> Path:
    """The folder of golden tables."""
    if not GOLDEN.is_dir():
        missing("the golden tables", "set DVM_GOLDEN to their folder")
    return GOLDEN


def module_at(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def canon(golden: Path) -> ModuleType:
    """Canonical rows and their hash: ``canon.rows(table) -> list[str]``, ``canon.digest(rows) -> str``."""
    return module_at("golden_canon", golden / "canon.py")


@pytest.fixture(scope="session")
def pylance() -> ModuleType:
    """Lance's own library: what makes tables, and the judge of what is read of them."""
    try:
        return importlib.import_module("lance")
    except ImportError as error:
        missing("pylance", f"install pylance ({error})")


@pytest.fixture
def golden_copy(golden: Path, tmp_path: Path) -> Callable[[str], Path]:
    """A private, writable copy of a golden table, by its path below the golden folder
    (``delta/table-with-dv-small``)."""

    def copy(name: str) -> Path:
        target = tmp_path / "golden" / name
        shutil.copytree(golden / name, target)
        return target

    return copy


@pytest.fixture(scope="session")
def s3() -> Iterator[Store]:
    """An S3 of our own on the loopback."""
    import logging

    import boto3
    from moto.s3.responses import S3Response
    from moto.server import ThreadedMotoServer

    # It looks for the object and puts it in a second step: of writers at the same moment, two could win.
    one, put = threading.Lock(), S3Response.put_object

    def put_alone(self: S3Response) -> Any:
        with one:
            return put(self)

    S3Response.put_object = put_alone  # type: ignore[method-assign]
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    boto3.client("s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1", **KEYS).create_bucket(
        Bucket="lake"
    )
    yield (
        "s3://lake",
        {"aws_endpoint": f"http://{host}:{port}", "aws_region": "us-east-1", "allow_http": "true", **KEYS},
    )
    server.stop()


@pytest.fixture(scope="session")
def other_s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """An S3 that others wrote."""
    if not S3PROXY.exists():
        missing("S3Proxy", "run 'scripts/stores' (needs Maven)")
    with s3proxy(tmp_path_factory.mktemp("s3proxy")) as store:
        yield store


@pytest.fixture(scope="session")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A container of Azure's emulator."""
    if not AZURITE.exists() or shutil.which("node") is None:
        missing("Azurite", "run 'scripts/stores' (needs Node and npm)")
    with azurite(tmp_path_factory.mktemp("azurite")) as store:
        yield store


@pytest.fixture(scope="session")
def uc_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealUnity]:
    """A server of Unity Catalog that others wrote."""
    if not UC_SERVER.exists():
        missing("A server of Unity Catalog", "run 'scripts/uc_server' (needs cargo, and half an hour)")
    with real_unity(tmp_path_factory.mktemp("uc-server")) as server:
        yield server


@pytest.fixture(scope="session")
def connect_packages() -> None:
    """What a client of Spark Connect needs besides PySpark."""
    try:
        import pyspark.sql.connect.client  # noqa: F401
    except ImportError as error:
        missing("Spark Connect", f"install pyspark[connect] ({error})")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[SparkSession]:
    """The worker's one Spark session: ours to run tasks on, and delta-spark's, with which it judges. ``make deep`` runs
    everything in it as users have it; the suite does so in new sessions where answers are judged.
    """
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark import __version__
    from pyspark.sql import SparkSession

    _end_jvm()
    home = tmp_path_factory.mktemp("spark")
    settings: dict[str, Any] = {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.driver.extraJavaOptions": "-Xms2g -Xmn800m",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": home / "warehouse",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.executorEnv.PYTHONPATH": Path(__file__).parent / "support" / "workers",
    }
    jars = sorted(JARS.glob("*.jar"))
    if jars and __version__.startswith(JUDGED_SPARK):
        settings |= {
            "spark.jars": ",".join(map(str, [*jars, *(each for each in (ICEBERG, SQLITE) if each.is_file())])),
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "spark.databricks.delta.snapshotPartitions": "1",
            # Its VACUUM lists folders in as many tasks, 10,000 by default.
            "spark.sql.sources.parallelPartitionDiscovery.parallelism": "1",
        }
    builder = SparkSession.builder.master("local[2,3]").appName("dv-maintenance-tests")
    for key, value in settings.items():
        builder = builder.config(key, str(value))
    session = builder.getOrCreate()
    if pytestconfig.option.markexpr != "deep":
        for key, value in CHEAP.items():
            session.conf.set(key, value)
    yield session
    _end_jvm()


def _end_jvm() -> None:
    """A test that started a session of its own leaves its JVM behind, and that one has no judges' jars."""
    from pyspark import SparkContext

    if SparkContext._active_spark_context is not None:
        SparkContext._active_spark_context.stop()
    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()
        SparkContext._gateway = SparkContext._jvm = None


@pytest.fixture(scope="session")
def delta_spark(spark: SparkSession) -> SparkSession:
    """The Spark session, with delta-spark in it: the judge."""
    if not JARS.is_dir() or not any(JARS.glob("*.jar")):
        missing("delta-spark", "run 'make judges' (needs Maven and network)")
    if not spark.version.startswith(JUDGED_SPARK):
        missing("delta-spark", f"it was built for Spark {JUDGED_SPARK}*, this is {spark.version}")
    return spark


@pytest.fixture(scope="session")
def kernel() -> Iterator[Kernel]:
    """Delta's kernel in Java, with its client of Unity Catalog."""
    if not kernel_jars():
        missing("Delta's kernel", "run 'make judges' (needs Maven and network)")
    made = Kernel()
    yield made
    made.close()


@pytest.fixture(scope="session")
def pypaimon() -> Iterator[PyPaimon]:
    """Paimon's package for Python, in a process and an environment of its own: a judge, too."""
    from pypaimon_judge import PyPaimon

    if not (PYPAIMON / ".complete").is_file():
        missing("pypaimon", "run 'make judges' (needs network)")
    judge = PyPaimon(PYPAIMON / "bin" / "python", SEARCHES, PYPAIMON_FORMATS)
    yield judge
    judge.close()


@pytest.fixture(scope="session")
def searches() -> None:
    """What pypaimon needs for searches of vectors and texts."""
    if not (SEARCHES / ".complete").is_file() or not (SEARCHES / "lumina_data").is_dir():
        missing("paimon-vindex, paimon-ftindex and lumina-data", "run 'make judges' (needs network)")


@pytest.fixture(scope="session")
def pypaimon_formats() -> None:
    """What pypaimon reads and writes Lance and Vortex files with."""
    if not (PYPAIMON_FORMATS / ".complete").is_file():
        missing("pylance and vortex-data for pypaimon", "run 'make judges' (needs network)")


@pytest.fixture(scope="session")
def airflow_environment() -> Path:
    """Airflow, in an environment of its own."""
    from support.airflow_stack import ENVIRONMENT

    if not (ENVIRONMENT / "bin" / "airflow").exists():
        missing("Airflow", "run 'make airflow-environment' (needs network)")
    return ENVIRONMENT


@pytest.fixture(scope="session")
def lay(golden: Path) -> ModuleType:
    """Of the golden Iceberg tables: ``lay.lay(source, target)``: the metadata of a table has absolute paths."""
    return module_at("golden_lay", golden / "iceberg" / "lay.py")


@pytest.fixture(scope="session")
def iceberg_spark(spark: SparkSession) -> SparkSession:
    """The Spark session, with Iceberg's runtime in it, and a driver for catalogs in SQLite."""
    if not ICEBERG.is_file() or not SQLITE.is_file():
        missing("Iceberg's runtime for Spark", "run 'make judges' (needs Maven and network)")
    if not spark.version.startswith(JUDGED_SPARK):
        missing("Iceberg's runtime for Spark", f"it was built for Spark {JUDGED_SPARK}*, this is {spark.version}")
    return spark


@pytest.fixture(scope="session")
def paimon_engine(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> PaimonEngine:
    """Paimon's own engine, in the JVM of the Spark session: the judge of what we read and leave of its tables."""
    from support.paimon_engine import PaimonEngine

    if not PAIMON.is_file():
        missing("Paimon", "run 'make judges' (needs Maven and network)")
    return PaimonEngine(spark, PAIMON, tmp_path_factory.mktemp("paimon"))
