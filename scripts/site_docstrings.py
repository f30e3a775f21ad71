"""Docstrings as the site shows them: fields as lists, titles of sections in bold, roles of Sphinx as code."""

from __future__ import annotations

import re
from typing import Any

import griffe

_FIELD = re.compile(r"^([\w*]+(?:, [\w*]+)*) : ")
_TITLE = re.compile(r"^(\w+)\n-{3,}$", re.MULTILINE)
_ROLE = re.compile(r":\w+:`~?([^`]+)`")


class HouseStyle(griffe.Extension):
    """Markdown would join ``name : meaning`` lines into one paragraph."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = readable(obj.docstring.value)


def readable(text: str) -> str:
    lines: list[str] = []
    inside = False
    for line in _ROLE.sub(r"`\1`", _TITLE.sub(r"**\1**\n", text)).splitlines():
        field = _FIELD.match(line)
        if field is not None and not inside:
            lines.append("")
        inside = field is not None or (inside and bool(line.strip()))
        lines.append(_FIELD.sub(r"- `\1`: ", line))
    return "\n".join(lines)
