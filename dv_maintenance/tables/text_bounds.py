"""Bounds of text that are cut short."""

from __future__ import annotations


def above(text: str, length: int) -> str | None:
    """An upper bound of ``text`` with at most ``length`` characters; ``None`` if none exists."""
    if len(text) <= length:
        return text
    kept = text[:length]
    while kept:
        last = ord(kept[-1]) + 1
        # Surrogates are not characters, and Java compares UTF-8 bytes, which sort like code points.
        last = 0xE000 if 0xD800 <= last < 0xE000 else last
        if last <= 0x10FFFF:
            return kept[:-1] + chr(last)
        kept = kept[:-1]
    return None
