"""Bar charts: what a browser parses and a person sees."""

from __future__ import annotations

import re
from urllib.parse import unquote
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dv_maintenance.service.chart import Bar, Picture, bar_chart

SVG = "{http://www.w3.org/2000/svg}"


def drawn(markdown: str) -> ET.Element:
    """The SVG of the only image, as a browser parses it."""
    (uri,) = re.findall(r"^!\[[^\]]*\]\(<data:image/svg\+xml,([^<>\n]*)>\)", markdown)
    return ET.fromstring(unquote(uri))


def lines(markdown: str) -> list[str]:
    return "".join(drawn(markdown).itertext()).split("\n")


def lengths(markdown: str) -> list[list[int]]:
    """Of the bars, path by path."""
    return [
        [int(bar) for bar in re.findall(r"h(\d+)", path.attrib["d"])] for path in drawn(markdown).iter(f"{SVG}path")
    ]


def test_bars_are_as_long_as_their_shares() -> None:
    picture = bar_chart([Bar("a", 0.5), Bar("b", 0.25), Bar("c", 0.0001)], "Shares")
    assert picture.startswith("![Shares](<data:image/svg+xml,")
    assert lines(picture) == ["50.0% a", "25.0% b", " 0.0% c"]
    ((longest, half, least),) = lengths(picture)
    assert half == pytest.approx(longest / 2, abs=1)
    assert least == 1, "what is not zero can be seen"


def test_a_picture_is_no_wider_than_its_labels_need() -> None:
    def width(label: str, before: float | None = None) -> int:
        return int(drawn(bar_chart([Bar(label, 0.5, before)], "Shares")).attrib["width"])

    assert width("2026-11-21") < 280, "a small window cuts off what is wider"
    assert width("2026-11-21") < width("日" * 10) <= width("x" * 99) < width("x" * 99, before=0.75) <= 384


def test_small_shares_look_small() -> None:
    ((small,),) = lengths(bar_chart([Bar("a", 0.01)], "Shares"))
    ((large,),) = lengths(bar_chart([Bar("a", 0.1)], "Shares"))
    assert small == pytest.approx(large / 10, abs=1)


def test_before_and_after_share_a_scale() -> None:
    picture = bar_chart([Bar("a", 0.1, before=0.4), Bar("b", 0.0, before=0.2)], "Shares")
    assert lines(picture) == ["40.0% → 10.0% a", " 20.0% → 0.0% b"]
    before, after = lengths(picture)
    assert before[1] == pytest.approx(before[0] / 2, abs=1)
    assert after == [pytest.approx(before[0] / 4, abs=1)], "nothing is left of the second"


@given(st.lists(st.text(max_size=200), min_size=1, max_size=8))
def test_no_label_breaks_the_picture(labels: list[str]) -> None:
    picture = bar_chart([Bar(label, 0.5) for label in labels], "Shares")
    found = lines(picture)
    assert len(found) == len(labels)
    assert all(len(line) <= len("50.0% ") + 22 for line in found)
    assert len(list(drawn(picture).iter())) == 5, "no element but ours"


def test_labels_keep_both_ends() -> None:
    (line,) = lines(bar_chart([Bar("shop-" + "x" * 80 + "-2026", 0.5)], "Shares"))
    assert line.startswith("50.0% shop-")
    assert line.endswith("-2026")
    assert "…" in line


def test_a_picture_is_an_image_of_its_own_too() -> None:
    picture = Picture.of(
        [Bar("2026-10", 0.5, time=True), Bar("2026-9", 0.25, time=True)], "Shares", "Shares, by `month`"
    )
    assert picture is not None
    image = ET.fromstring(picture.svg())
    assert "".join(image.itertext()).split("\n") == ["25.0% 2026-9", "50.0% 2026-10"], "in order of time"
    assert Picture.of([], "Shares", "Shares") is None
