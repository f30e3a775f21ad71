"""What reading, rewriting and keeping bytes costs, in seconds of CPU: the currency of the meter."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

_GB = 1e9


class Prices(BaseModel):
    """Prices in CPU seconds. The defaults were measured on Parquet with Spark's reader; see
    docs/explanation/benchmarks.md.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    decode: float = Field(default=3.4, gt=0, allow_inf_nan=False)
    """Decoding a GB of a data file."""
    encode: float = Field(default=3.3, ge=0, allow_inf_nan=False)
    """Writing a GB of live rows."""
    copy_price: float = Field(default=1.5, ge=0, allow_inf_nan=False)
    """Copying a GB of row groups without decoding them, checks included."""
    dv: float = Field(default=0.13, ge=0, allow_inf_nan=False)
    """What a deletion vector adds to each read of its file, as a share of decoding it, however few rows it names."""
    open_bytes: int = Field(default=4 << 20, ge=0)
    """Opening a file costs as much as decoding this many bytes (Spark's ``spark.sql.files.openCostInBytes``)."""
    start: float = Field(default=25.0, ge=0, allow_inf_nan=False)
    """Starting a run with a Spark session of its own."""
    shared_start: float = Field(default=5.0, ge=0, allow_inf_nan=False)
    """One more table in a run whose session is up."""
    storage: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Keeping a GB for a day: the price of storage divided by that of a CPU second. At 0 storage costs nothing."""

    def decoding(self, size: float) -> float:
        """Decoding ``size`` bytes."""
        return self.decode * size / _GB

    def encoding(self, size: float) -> float:
        """Writing ``size`` bytes."""
        return self.encode * size / _GB

    def copying(self, size: float) -> float:
        """Copying ``size`` bytes from file to file."""
        return self.copy_price * size / _GB

    def rewriting(self, read: float, written: float, copied: float) -> float:
        """Rewriting files of ``read`` bytes into ``written``, ``copied`` of them without decoding."""
        return self.decoding(max(0.0, read - copied)) + self.encoding(max(0.0, written - copied)) + self.copying(copied)

    def keeping(self, size: float, days: float) -> float:
        """Storing ``size`` bytes for ``days``."""
        return self.storage * size / _GB * days
