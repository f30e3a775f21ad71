"""Where tests find what is not theirs: the repository, golden tables, jars of the judges."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
GOLDEN = Path(os.environ.get("DVM_GOLDEN", ROOT.parent / "shared" / "golden"))
JARS = ROOT / ".cache" / "jars" / "delta-4.4.0"
# Unity Catalog's client, with which Delta's kernel asks for tables.
UNITY = ROOT / ".cache" / "jars" / "unitycatalog-0.6.0"
# What those jars are built for.
JUDGED_SPARK = "4.1."
# Paimon's own engine, without an engine around it.
PAIMON = ROOT / ".cache" / "jars" / "paimon-1.4.2" / "paimon-bundle-1.4.2.jar"
# The REST catalog of Paimon's tests, and what it runs on.
PAIMON_REST = [
    ROOT / ".cache" / "jars" / each
    for each in (
        "paimon-rest-1.4.2/paimon-core-1.4.2-tests.jar",
        "okhttp-4.12.0/mockwebserver-4.12.0.jar",
        "okhttp-4.12.0/okhttp-4.12.0.jar",
        "okio-3.6.0/okio-jvm-3.6.0.jar",
        "kotlin-1.9.10/kotlin-stdlib-1.9.10.jar",
        "junit-4.13.2/junit-4.13.2.jar",
    )
]
# Iceberg's runtime for Spark.
ICEBERG = ROOT / ".cache" / "jars" / "iceberg-1.12.0" / "iceberg-spark-runtime-4.1_2.13-1.12.0.jar"
SQLITE = ROOT / ".cache" / "jars" / "sqlite-3.50.3.0" / "sqlite-jdbc-3.50.3.0.jar"
# Classes of Spark and its judges, as a JVM has them once it has loaded them: `make` writes it.
CLASSES = ROOT / ".cache" / "classes.jsa"
PYPAIMON = ROOT / ".cache" / "pypaimon-2.1.0"
# What pypaimon reads and writes Lance and Vortex files with.
PYPAIMON_FORMATS = ROOT / ".cache" / "pypaimon-formats-2.1.0"
# What pypaimon searches vectors and texts with.
SEARCHES = ROOT / ".cache" / "pypaimon-searches-2.1.0"
