"""Take the pictures of the documentation from a real Dagster: its daemon, its page, Spark, and tables that change.

Run it as ``python scripts/screenshots``. Needs Playwright (the dependency group ``screenshots``), Chromium (see
``scripts/chromium``) and Java. Takes about ten minutes: the sensor evaluates once a minute.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path

from browser import browser
from instance import Dagster
from lake import Lake
from steps import steps

_IMAGES = Path(__file__).parents[2] / "docs" / "images"


def main() -> None:
    parser = argparse.ArgumentParser(description="Take the pictures of the documentation.")
    parser.add_argument("--images", type=Path, default=_IMAGES, help="folder for the pictures (docs/images)")
    images: Path = parser.parse_args().images
    images.mkdir(parents=True, exist_ok=True)
    # Ends like an error, so that Dagster, Chromium and the tables go too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dvm-screenshots-") as scratch:
        lake = Lake(Path(scratch) / "lake")
        lake.build()
        with Dagster(Path(scratch) / "dagster", lake.tables_file) as dagster, browser(dagster.url, images) as page:
            for picture in steps(page, dagster, lake):
                size = picture.stat().st_size // 1024
                print(f"{time.monotonic() - started:5.0f} s  {picture.name} ({size} KiB)", flush=True)


if __name__ == "__main__":
    main()
