"""The report: one file that needs nothing else."""

import base64
import dataclasses
import re
import struct
import zlib
from html.parser import HTMLParser

import numpy as np
import pytest

import plausible as pl
from plausible.report import charts, png
from plausible.report.page import page
from plausible.report.settings import METHODS, SETTINGS

EVIL = "<script>alert(1)</script>"
VOID = {"meta", "input", "img", "br", "link"}
MOST_BYTES = 5_000_000


class Tree(HTMLParser):
    """Tags with their attributes; complains where an element is not closed by its own end."""

    def __init__(self, text: str):
        super().__init__()
        self.open, self.found, self.complaints = [], [], []
        self.feed(text)
        self.complaints += self.open

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.complaints.append(tag)

    def all(self, tag: str) -> list[dict]:
        return [attributes for name, attributes in self.found if name == tag]


@pytest.fixture(scope="module")
def text() -> str:
    """Of classes in a plane, of images and of numbers."""
    names = ("moons", "digits", "diabetes")
    return page([pl.compare(name, ["map", "swag"], seeds=2, epochs=5, progress=False) for name in names])


@pytest.fixture(scope="module")
def evil() -> str:
    data = pl.datasets.moons()
    data = dataclasses.replace(
        data, name=f'"{EVIL}', classes=(EVIL, f"'>{EVIL}"), feature_names=(EVIL, f'"{EVIL}'), task="classification"
    )
    methods = {EVIL: METHODS["map"], f'" onclick="{EVIL}': METHODS["swag"]}
    digits = dataclasses.replace(SETTINGS["digits"].load(), classes=tuple(f'{EVIL}"{k}' for k in range(8)))
    return page([pl.compare(d, methods, seeds=1, epochs=4, progress=False) for d in (data, digits)])


def test_the_page_is_well_formed(text):
    assert Tree(text).complaints == []


def test_nothing_in_the_page_leads_outside(text):
    tree = Tree(text)
    addresses = [a[key] for _, a in tree.found for key in ("src", "href", "xlink:href", "action") if key in a]
    assert addresses and [a[:40] for a in addresses if not a.startswith(("data:image/png;base64,", "#"))] == []
    assert not tree.all("link") and not re.search(r"@import|url\(|https?://|fetch\(|XMLHttpRequest", text)
    (policy,) = [a["content"] for a in tree.all("meta") if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")


def test_every_link_inside_the_page_arrives(text):
    tree = Tree(text)
    ids = [a["id"] for _, a in tree.found if "id" in a]
    assert len(ids) == len(set(ids))
    wanted = {a["href"][1:] for _, a in tree.found if a.get("href", "").startswith("#")}
    wanted |= {a["value"] for a in tree.all("input")}
    assert wanted and wanted <= set(ids)


def test_the_page_is_small(text):
    assert len(text.encode()) < MOST_BYTES


def test_a_script_in_a_name_stays_text(evil):
    tree = Tree(evil)
    assert tree.complaints == []
    assert len(tree.all("script")) == 1 and EVIL not in evil
    assert not [a for _, a in tree.found if any(key.startswith("on") for key in a)]
    assert "&lt;script&gt;alert(1)" in evil


def test_the_page_has_every_kind_of_picture(text):
    for heading in (
        "Reliability", "Decision", "Aleatoric", "Epistemic", "Does it notice", "Most uncertain",
        "Most confidently wrong", "Predictions with their intervals", "Calibration of intervals", "Better against quicker",
    ):  # fmt: skip
        assert heading in text
    assert "prefers-color-scheme: dark" in text and 'name="viewport"' in text


def test_everything_that_is_seen_has_words_too(text):
    tree = Tree(text)
    pictures = [a for a in tree.all("svg") if a.get("class") == "plot"]
    assert pictures and all(a.get("aria-label") for a in pictures)
    assert all(a.get("alt") for a in tree.all("img"))
    assert all("aria-sort" in a for a in tree.all("th") if a.get("scope") == "col")
    points = [a for a in tree.all("circle") if "data-tip" in a]
    assert all(a["tabindex"] == "0" and a["aria-label"] == a["data-tip"] for a in points)
    assert len(points) == 3 + 3 + 2  # temperature scaling is one more row where there are labels


def test_the_report_of_one_comparison_is_written_where_it_was_asked_for(tmp_path):
    found = pl.compare("wine", ["map"], seeds=1, epochs=4, progress=False)
    place = found.report(tmp_path / "wine.html")
    assert place.read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize("shape", [(3, 5), (4, 2, 3)])
def test_a_picture_holds_the_pixels_it_was_given(shape):
    pixels = np.random.default_rng(0).random(shape)
    raw = base64.b64decode(png.data_uri(pixels).partition(",")[2])
    width, height, depth, kind = struct.unpack(">IIBB", raw[16:26])
    assert (height, width, depth, kind) == (*shape[:2], 8, 2 if len(shape) == 3 else 0)
    start = raw.index(b"IDAT") + 4
    (length,) = struct.unpack(">I", raw[start - 8 : start - 4])
    lines = np.frombuffer(zlib.decompress(raw[start : start + length]), np.uint8).reshape(height, -1)
    assert (lines[:, 0] == 0).all()
    assert np.array_equal(lines[:, 1:].reshape(shape), (pixels * 255).round())


@pytest.mark.parametrize(
    ("ends", "logarithmic", "expected"),
    [
        ((0, 1), False, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        ((-4.1, 4.2), False, [-4, -2, 0, 2, 4]),
        ((0.3, 12), True, [0.5, 1, 2, 5, 10]),
        ((0.01, 2000), True, [0.01, 0.1, 1, 10, 100, 1000]),
    ],
)
def test_ticks_are_round_numbers_inside_the_axis(ends, logarithmic, expected):
    assert charts.ticks(*ends, logarithmic=logarithmic) == expected
