"""Names in Avro files, which have letters, digits and underscores only, as Avro's Java library understands them."""

from __future__ import annotations

import unicodedata
from typing import Final

_LETTERS: Final = frozenset({"Lu", "Ll", "Lt", "Lm", "Lo"})


def is_name(text: str) -> bool:
    """Whether a field may be called so."""
    return bool(text) and safe_name(text) == text


def safe_name(text: str) -> str:
    """The name that Iceberg's Java library makes of any other (``AvroSchemaUtil``). Java's characters are units of
    UTF-16.
    """
    units = memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H")
    return "".join(_safe(chr(unit), first=not at) for at, unit in enumerate(units))


def _safe(character: str, *, first: bool) -> str:
    category = unicodedata.category(character)
    if character == "_" or category in _LETTERS or (category == "Nd" and not first):
        return character
    return f"_{character}" if category == "Nd" else f"_x{ord(character):X}"
