"""Errors from the messages of failed Spark jobs."""

from __future__ import annotations

import re
from typing import Final

from dv_maintenance import __version__
from dv_maintenance.errors import DvMaintenanceError, MissingSoftwareError

# Messages by which workers reveal a Python without our packages, of another version, or no Python.
_UNFIT_WORKER: Final = (
    "ModuleNotFoundError: ",
    "ImportError: dv-maintenance ",
    "[PACKAGE_NOT_INSTALLED]",
    "[PYTHON_VERSION_MISMATCH]",
    "Cannot run program ",
)
_CANCELLED: Final = ("[SPARK_JOB_CANCELLED]", "[OPERATION_CANCELED]")
# An error with a message, or an error of Python without one (MemoryError). A Java class alone has no information.
_RAISED: Final = re.compile(
    r"^(?:: )?([\w.]*(?:Error|Exception|Interrupt): .+|\w*(?:Error|Exception|Interrupt))$", re.MULTILINE
)


def failure_of(text: str, work: str = "") -> DvMaintenanceError:
    """The error for failed ``work`` ("the rewrite of a.parquet"), from Spark's message: a missing package on the
    workers, or any other cause.
    """
    cause = _cause(text)
    if any(sign in text for sign in _UNFIT_WORKER):
        return MissingSoftwareError(
            f"the Python of Spark's workers can't run this: {cause}",
            next_step=f"install dv-maintenance {__version__} there, on the Python version used here; the Spark setting "
            "spark.sql.execution.pyspark.python selects the Python of the workers",
        )
    return DvMaintenanceError(
        f"Spark could not finish{' ' if work else ''}{work}: {cause}",
        next_step="see the logs of Spark's driver and executors",
    )


def is_cancelled(text: str) -> bool:
    """Whether somebody ended the job."""
    return any(sign in text for sign in _CANCELLED)


def _cause(text: str) -> str:
    """The line of a Java or Python stack trace that has the cause."""
    raised: list[str] = _RAISED.findall(text)
    return (raised[-1] if raised else text.strip().split("\n")[0])[:500]
