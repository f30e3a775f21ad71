"""Makes the package's long description of README.md: a registry shows it outside of the repository, where relative
links lead nowhere.

``DVM_SOURCE_URL`` names the repository's page, such as ``https://forge.example/team/dv_maintenance``; links then lead
to the files of this version's tag, and the metadata has the project's URLs. Without it links become plain text. A wheel
that is built from a source distribution keeps what that one has.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

# [text](target) and ![text](target), where the target is neither an address nor a place on the same page.
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)]+)\)")


class CustomMetadataHook(MetadataHookInterface):
    """Hatchling's name for it."""

    def update(self, metadata: dict[str, Any]) -> None:
        source = os.environ.get("DVM_SOURCE_URL", "").rstrip("/")
        tag = f"v{metadata['version']}"
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": described(text, source, tag)}
        metadata["urls"] = urls(source, tag) if source else {}


def described(text: str, source: str, tag: str) -> str:
    """The README with absolute links; ``source`` empty: with none into the repository."""

    def absolute(match: re.Match[str]) -> str:
        image, label, target = match.groups()
        if not source:
            return "" if image else label
        return f"{image}[{label}]({source}/{'raw' if image else 'blob'}/{tag}/{target})"

    return re.sub(r"\n{3,}", "\n\n", _LINK.sub(absolute, text))


def urls(source: str, tag: str) -> dict[str, str]:
    files = f"{source}/blob/{tag}"
    return {
        "Homepage": source,
        "Documentation": f"{files}/docs/index.md",
        "Changelog": f"{files}/CHANGELOG.md",
        "Issues": f"{source}/issues",
        "Source": source,
    }
