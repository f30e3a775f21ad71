"""The tables and the picture of results, from the JSON of a run: for users in docs/explanation/benchmarks.md, for us in
the lab book.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from peers import plot

ROOT = Path(__file__).parent.parent.parent
RESULTS = Path(__file__).parent / "results.json"
PAGE = ROOT / "docs" / "explanation" / "benchmarks.md"
LAB_BOOK = ROOT / "benchmarks" / "README.md"
PICTURE = ROOT / "docs" / "images" / "peers.svg"
BEGIN, END = "<!-- peers: begin -->\n", "<!-- peers: end -->\n"


def rendered(found: dict[str, Any]) -> str:
    about = found["environment"]
    versions = ", ".join(
        f"{name} {version}" for name, version in {"Python": about["python"], **about["packages"]}.items()
    )
    load, turns = spread(found, "load"), spread(found, "rounds")
    lines = [
        f"{about['cores']} cores, load {load} when a case began; medians of {turns} turns. {versions}.",
        "",
        "| case | peer | wall (least to greatest) | goal | CPU | memory | ours: wall s, CPU s | theirs |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case in found["cases"]:
        ratio = case["ratio"]
        memory = f"{ratio['peak']:.2f}" if "peak" in ratio else ""
        if "worker" in case["ours"]:
            memory += f"; worker {case['ours']['worker'] >> 20} MB"
        if "worker" in ratio:
            memory += f", {ratio['worker']:.2f}"
        ours, theirs = (f"{case[side]['wall']:.2f}, {case[side]['cpu']:.2f}" for side in ("ours", "theirs"))
        lines.append(
            f"| {case['what']} | {case['peer']} | **{ratio['wall']:.2f}** ({ratio['least']:.2f} to "
            f"{ratio['greatest']:.2f}) | {case['goal']} | {ratio['cpu']:.2f} | {memory} | {ours} | {theirs} |"
        )
    return "\n".join(lines) + "\n"


def summary(found: dict[str, Any]) -> str:
    """What a user asks for: other tools, time and memory."""
    about = found["environment"]
    versions = ", ".join(f"{name} {version}" for name, version in about["packages"].items())
    lines = [
        f"Measured on {about['cores']} cores with {versions}.",
        "",
        "| work | compared with | time | memory |",
        "|---|---|---|---|",
    ]
    for case in found["cases"]:
        if case["peer"].startswith(("ours", "import ")):
            continue
        ratio = case["ratio"]
        memory = f"{ratio['peak']:.2f}" if "peak" in ratio else ""
        lines.append(f"| {case['what']} | {case['peer']} | {ratio['wall']:.2f} | {memory} |")
    return "\n".join(lines) + "\n"


def spread(found: dict[str, Any], key: str) -> str:
    values = [case[key] for case in found["cases"]]
    return f"{min(values)} to {max(values)}" if min(values) < max(values) else str(min(values))


def with_results(page: str, table: str) -> str:
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return head + BEGIN + table + END + tail


def write() -> None:
    found = json.loads(RESULTS.read_text())
    for page, table in ((PAGE, summary(found)), (LAB_BOOK, rendered(found))):
        page.write_text(with_results(page.read_text(), table))
    PICTURE.write_text(plot.svg(found))
