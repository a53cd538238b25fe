"""The doctor's ten steps in a notebook: a tracker that moves, and a table that is read without colours."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from ocrlab.hardware.doctor.check_spec import fail, ok, skip, warn
from ocrlab.hardware.doctor.doctor_job import STEPS, Progress
from ocrlab.records import Check
from ocrlab.reports import doctor_view
from ocrlab.reports.view import View, page


class Clock:
    """A clock that is moved by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def at(step: int, check: Check) -> Check:
    return Check(**{**vars(check), "step": step})


CHECKS = [
    at(1, ok("interpreter", "CPython <3.11>")),
    at(
        2,
        fail(
            "import torch", "died of SIGILL & more", "a build for this processor", "pip install 'x<2'", "build.cpu_isa"
        ),
    ),
    at(3, warn("memory", "little", "more", "end other programs")),
    at(4, skip("GPU", "there is none")),
]


def test_the_tracker_shows_at_once_then_twice_a_second_and_the_end() -> None:
    shown: list[View] = []
    clock = Clock()
    climb = doctor_view.Climb(shown.append, clock)
    assert "0 of 10 steps" in shown[0].text
    progress = Progress()
    progress.running[2].append("import torch")
    climb(progress)
    assert len(shown) == 1
    clock.now += 1
    progress.running[2].append("import cv2")
    climb(progress)
    assert "2 Imports: running" in shown[-1].text
    assert "import torch, import cv2" in shown[-1].html
    for number in range(1, len(STEPS) + 1):
        progress.complete[number] = [CHECKS[1]]
        climb(progress)
    assert len(shown) == 3
    assert "10 of 10 steps took 1 s" in shown[-1].text
    assert "waiting" not in shown[-1].text
    assert shown[-1].html.count("✗ fail") == 10


def test_the_table_says_everything_and_opens_what_must_be_mended() -> None:
    view = doctor_view.table(CHECKS)
    assert "1 of 4 findings must be fixed" in view.html
    assert "CPython &lt;3.11&gt;" in view.html and "SIGILL &amp; more" in view.html
    assert "<code>pip install &#x27;x&lt;2&#x27;</code>" in view.html
    assert "build.cpu_isa" in view.html
    assert view.html.count("<details") == len(STEPS)
    assert view.html.count(" open>") == 2
    for check in CHECKS:
        assert check.name in view.text
    assert "All is well" in doctor_view.table([CHECKS[0]]).html
    assert "Nothing fails" in doctor_view.table([CHECKS[2]]).html
    assert "Nothing could be judged" in doctor_view.table([]).html


def test_nothing_is_fetched_and_every_tag_is_closed() -> None:
    class Balance(HTMLParser):
        open: list[str] = []  # noqa: RUF012

        def handle_starttag(self, tag: str, attrs: object) -> None:
            self.open.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert self.open.pop() == tag

    climb = doctor_view.Climb(lambda view: None, Clock())
    html = page(climb.view(Progress()).html + doctor_view.table(CHECKS).html)
    assert not re.search(r"(src|href|url)\s*[=(]", html)
    parser = Balance()
    parser.feed(html)
    assert parser.open == []
