"""Bar charts as SVG and as Markdown images. Text in, text out.

Their appearance follows from Dagster's treatment of Markdown (1.13). It drops HTML and bare SVG, but accepts images
as data URIs. An image needs an explicit width and is cut off by a narrow window. Markdown of :data:`INLINE` or more is
shown only after a click. An image can't know the page's theme, since its media queries see the system's. So the SVG is
small and terse, its background is transparent, and its colours are halfway between the white and the near black of the
two themes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

# Markdown is shown in place below this many UTF-16 units.
INLINE: Final = 1000
# With short labels; the length decides what fits.
_MOST_BARS: Final = 24

_ROW: Final = 18
_WIDEST: Final = 384
_BARS_WIDTH: Final = 140
_CHARACTER: Final = 7.3  # of 12 pixels monospace, rounded up
_LABEL: Final = 22
# The full width means at least this share: one percent should not look like a disaster.
_FULL_AT_LEAST: Final = 0.1
_TEXT_COLOUR: Final = "#737b8a"
_BAR_COLOUR: Final = "#7269e4"
# The rest would end a Markdown destination, start an entity or be no URI. Beyond ASCII the browser encodes by itself.
_UNSAFE: Final = r"[^A-Za-z0-9 \-._~/:=;,'()\u0080-\U0010ffff]"


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a chart.

    label : any text.
    share : share of 1.
    before : the share before; ``None``: there is nothing to compare with.
    time : the label begins with a year, a date or a time.
    """

    label: str
    share: float
    before: float | None = None
    time: bool = False


@dataclass(frozen=True, slots=True)
class Picture:
    """A bar chart with its caption.

    bars : the worst first, at most 24.
    total : number of all bars.
    alt : alternative text in plain words.
    caption : what the bars show, without the full stop.
    note : a sentence added to the caption.
    """

    bars: tuple[Bar, ...]
    total: int
    alt: str
    caption: str
    note: str = ""

    @classmethod
    def of(cls, bars: Sequence[Bar], alt: str, caption: str, note: str = "") -> Picture | None:
        """A picture; ``None`` if there are no bars."""
        return cls(tuple(bars[:_MOST_BARS]), len(bars), alt, caption, note) if bars else None

    def svg(self) -> str:
        """All the bars, as a standalone image."""
        return _svg(self._chosen(len(self.bars)))

    def markdown(self) -> str:
        """As many of the bars as pages show in place; empty if not even one fits."""
        for shown in range(len(self.bars), 0, -1):
            hidden = f" The {shown:,} worst of {self.total:,}." if shown < self.total else ""
            caption = f"{self.caption}.{hidden} {self.note}".rstrip()
            text = f"{bar_chart(self._chosen(shown), self.alt)}\n\n{caption}"
            if fits_inline(text):
                return text
        return ""

    def _chosen(self, shown: int) -> list[Bar]:
        """The worst bars; dates and times in chronological order."""
        chosen = list(self.bars[:shown])
        if all(bar.time for bar in chosen):
            chosen.sort(key=lambda bar: _natural(bar.label))
        return chosen


def _natural(text: str) -> list[tuple[int, int, str]]:
    """A sort key that orders numbers in text by their value: month 9 before month 10."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", text) if part]


def bar_chart(bars: Sequence[Bar], alt: str) -> str:
    """The bars from top to bottom as a Markdown image. ``alt``: plain words, without brackets."""
    from urllib.parse import quote

    return f"![{alt}](<data:image/svg+xml,{re.sub(_UNSAFE, lambda found: quote(found[0], safe=''), _svg(bars))}>)"


def fits_inline(markdown: str) -> bool:
    """Whether Dagster's page shows it in place."""
    return len(markdown.encode("utf-16-le", "replace")) // 2 < INLINE


def _svg(bars: Sequence[Bar]) -> str:
    import html

    shares = [_share(bar) for bar in bars]
    digits = max(map(len, shares))
    labels = [_label(bar.label) for bar in bars]
    left = round((digits + 2 + min(_LABEL, max(map(_columns, labels)))) * _CHARACTER)
    width = min(_BARS_WIDTH, _WIDEST - left)
    full = max(_FULL_AT_LEAST, *(max(bar.share, bar.before or 0) for bar in bars))
    text = "\n".join(
        f"{share:>{digits}} {html.escape(label, quote=False)}" for share, label in zip(shares, labels, strict=True)
    )
    before = _path([(bar.before or 0) / full for bar in bars], left, width)
    now = _path([bar.share / full for bar in bars], left, width)
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{left + width}' height='{_ROW * len(bars)}'>"
        # The one way to write many lines without an element for each.
        f"<foreignObject width='{left}' height='100%'><pre xmlns='http://www.w3.org/1999/xhtml' "
        f"style='margin:0;font:12px/{_ROW}px monospace;color:{_TEXT_COLOUR}'>{text}</pre></foreignObject>"
        f"<g stroke='{_BAR_COLOUR}' stroke-width='11'>"
        + (f"<path opacity='.5' d='{before}'/>" if before else "")
        + f"<path d='{now}'/></g></svg>"
    )


def _path(lengths: Sequence[float], left: int, width: int) -> str:
    """Each bar is a thick stroke. ``lengths`` are shares of ``width``; every bar above zero is visible."""
    return "".join(
        f"M{left} {_ROW * row + _ROW // 2}h{max(1, round(width * length))}"
        for row, length in enumerate(lengths)
        if length
    )


def _share(bar: Bar) -> str:
    return f"{bar.share:.1%}" if bar.before is None else f"{bar.before:.1%} → {bar.share:.1%}"


def _label(text: str) -> str:
    """The label cut in the middle, as names differ at both ends, without characters that XML forbids or that change
    the direction of text.
    """
    import unicodedata

    clean = "".join("\N{REPLACEMENT CHARACTER}" if unicodedata.category(each)[0] == "C" else each for each in text)
    if len(clean) <= _LABEL:
        return clean
    head = _LABEL // 2 - 1
    return f"{clean[:head]}…{clean[head + 1 - _LABEL :]}"


def _columns(text: str) -> int:
    """The width in characters: East Asian ones take two."""
    import unicodedata

    return sum(2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in text)
