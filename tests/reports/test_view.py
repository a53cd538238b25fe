"""Views stand alone, as HTML and as text: a verdict, the doctor's steps, progress, plots."""

import base64
import re

import numpy as np
import pytest

from ocrlab.hardware.doctor.check_spec import fail, ok, skip, warn
from ocrlab.hardware.doctor.doctor_job import STEPS
from ocrlab.records import Cause, Check, Evidence, RuledOut, Verdict
from ocrlab.reports import doctor_view, plots, progress_view, verdict_view
from ocrlab.reports.view import DARK, View, heading, page, report_css


def test_a_view_shows_itself_in_both_ways() -> None:
    bundle = View("<p>hi</p>", "hi")._repr_mimebundle_()
    assert bundle["text/plain"] == "hi"
    assert bundle["text/html"].startswith("<style>")
    assert bundle["text/html"].endswith('<div class="ocrlab"><p>hi</p></div>')


def test_nothing_is_fetched() -> None:
    assert "url(" not in page("")
    assert "//" not in page("").replace("</", "")


def test_the_style_sheet_of_a_report_is_small_fetches_nothing_and_knows_the_dark() -> None:
    sheet = report_css()
    assert len(sheet) < 14_000 and sheet.count("{") == sheet.count("}")
    assert not re.search(r"url\(|@import|@font-face|<", sheet)
    dark = sheet.rpartition("prefers-color-scheme:dark")[2]
    assert all(f"--ocr-{name}:{colour}" in dark for name, colour in DARK.values())


SEGV = Cause(
    "native.segv",
    0.9,
    [Evidence("stacks.txt", 3, "File <b>x</b>"), Evidence("facts", None, "the process died of SIGSEGV")],
    "PYTHONFAULTHANDLER=1 COMMAND",
    "Align versions.",
)
VERDICT = Verdict(
    None, "killed", None, "SIGSEGV", None, [SEGV, Cause("build.abi", 0.3)],
    [RuledOut("host.oom_kill", "no count")], ["dmesg"],
)  # fmt: skip


def test_it_says_cause_confidence_evidence_fix_experiment_and_what_is_ruled_out() -> None:
    html = verdict_view.view(VERDICT, {"stacks.txt": "a & b", "kernel_log.txt": " "}, folder="runs/x").html
    for part in ("native.segv", "90 % sure", "stacks.txt:3", "Align versions.", "PYTHONFAULTHANDLER=1 COMMAND"):
        assert part in html
    for part in ("build.abi", "host.oom_kill", "no count", "dmesg", "runs/x", "a &amp; b", "segmentation fault"):
        assert part in html
    assert "File &lt;b&gt;x&lt;/b&gt;" in html
    assert html.count("<details>") == 1  # an empty text has nothing to unfold


def test_an_unknown_cause_says_what_is_missing() -> None:
    missing = ["the log", "what caused its error, `E: <b>`"]
    view = verdict_view.view(Verdict(None, "failed", missing=missing, values=["`x` is (3, 4) float32"]))
    assert "<dt>values</dt>" in view.html and "(3, 4) float32" in view.html
    assert "<span>what caused its error, <code>E: &lt;b&gt;</code></span>" in view.html
    assert "The cause is not known" in view.html
    assert "not known: the log" in view.text


def test_an_error_of_the_program_itself_is_a_cause_and_not_missing() -> None:
    own = "nothing from outside: this is the program's own error, `KeyError: '<a>'` (traceback.txt line 19)"
    view = verdict_view.view(Verdict(None, "failed", missing=[own, "the log"]), folder="runs/x")
    assert "<code>KeyError: &#x27;&lt;a&gt;&#x27;</code> (traceback.txt line 19)</p>" in view.html
    assert "not known" in view.html and "the log" in view.html and "nothing that was seen" not in view.html.lower()
    assert view.html.count("KeyError") == 1
    assert view.text.startswith("An error of the program itself, nothing from outside: `KeyError")
    alone = verdict_view.view(Verdict(None, "failed", missing=[own])).html
    assert "not known" not in alone and "traceback.txt" not in alone


class FakeClock:
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


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def train(step: int, total: int = 100, **figures: float) -> dict[str, object]:
    return {
        "kind": "train", "step": step, "total": total, "loss": 5.0 / (1 + step), "images_per_second": 7.5,
        **figures,
    }  # fmt: skip


def test_it_shows_at_once_then_twice_a_second_and_the_end(clock: FakeClock) -> None:
    shown: list[View] = []
    block = progress_view.Live("Training", shown.append, clock)
    assert len(shown) == 1
    block({"kind": "start", "step": 0, "total": 100})
    for step in range(1, 101):
        clock.now += 0.1
        block(train(step))
    assert len(shown) <= 2 + 10 / progress_view.EVERY
    block({"kind": "end", "step": 100, "total": 100, "hmean@0.5": 0.9})
    assert "step 100 of 100" in shown[-1].text
    assert "hmean@0.5 0.900" in shown[-1].text
    assert "took 0:10" in shown[-1].text


def test_the_clock_moves_while_nothing_else_does(clock: FakeClock) -> None:
    shown: list[View] = []
    block = progress_view.Live("Training", shown.append, clock)
    for _ in range(100):
        clock.now += 0.1
        block.tick()
    assert 8 <= len(shown) <= 11
    assert "so far 0:10" in shown[-1].text or "so far 0:09" in shown[-1].text
    block({"kind": "end", "step": 0, "total": 0})
    assert "…" not in shown[-1].text, "where nothing was counted nothing stands for it"
    clock.now += 5
    before = len(shown)
    block.tick()
    assert len(shown) == before  # what is over stands still


def test_warnings_stay_and_are_escaped(clock: FakeClock) -> None:
    block = progress_view.Live("<Training>", lambda _view: None, clock)
    block({"kind": "warning", "text": "page <7> left out"})
    assert "page &lt;7&gt; left out" in block.view().html
    assert "&lt;Training&gt;" in block.view().html


def test_nan_and_zero_steps_do_not_break_it(clock: FakeClock) -> None:
    block = progress_view.Live("Training", lambda _view: None, clock)
    for step in range(3):
        block(train(step, total=0, loss=float("nan")))
    assert "nan" in block.view().text


def test_what_is_done_in_parts_says_what_each_of_them_counts(clock: FakeClock) -> None:
    """Else a training of 20 steps and 3 faults ends as `step 3 of 3`."""
    block = progress_view.Live("Training, then planting faults", lambda _view: None, clock)
    block({"kind": "start", "step": 0, "total": 20})
    for step in range(1, 21):
        block({"kind": "train", "unit": "step", "step": step, "total": 20, "loss": 1.0})
    assert "step 20 of 20" in block.view().text
    clock.now += 60
    block({"kind": "measure", "unit": "fault", "step": 1, "total": 3})
    clock.now += 10
    block({"kind": "measure", "unit": "fault", "step": 2, "total": 3})
    assert "faults: fault 2 of 3, loss 1.000" in block.view().text
    assert "left, about 0:10" in block.view().text
    block({"kind": "end", "unit": "fault", "step": 3, "total": 3})
    assert "faults: step 20 of 20, fault 3 of 3, loss 1.000, took 1:10" in block.view().text
    assert 'aria-valuenow="100"' in block.view().html


ROWS = [
    {"step": 10.0, "loss": 8.0, "bce": 5.0, "dice": 1.0, "l1": 2.0},
    {"step": 20.0, "loss": 2.0, "bce": 1.0, "dice": 0.5, "l1": 0.5},
    {"step": 20.0, "hmean@0.5": 0.4, "hmean@0.7": 0.2, "hmean@0.8": 0.1},
    {"step": 30.0, "hmean@0.5": 0.9, "hmean@0.7": 0.7, "hmean@0.8": 0.4},
]


def payload(view: View) -> tuple[str, bytes]:
    match = re.search(r"data:image/([a-z+]+);base64,([A-Za-z0-9+/=]+)", view.html)
    assert match is not None
    return match[1], base64.b64decode(match[2])


def test_curves_state_their_finding() -> None:
    view = plots.curves(ROWS, limit=0.85)
    assert view.text == "Loss fell: 8 to 2 in 20 steps. hmean@0.5 reached 0.900 at step 30."
    assert f'role="img" aria-label="{view.text}"' in view.html
    assert view.html.startswith('<div class="wide"><svg ')
    assert len(view.html) < 30_000
    assert "optimizer step" in view.html
    assert "hmean@0.5 reached 0.900 at step 30" in view.html
    shown = view._repr_mimebundle_()["text/html"].partition("<svg")[2]  # in colours that know the dark
    assert "fill: var(--ocr-paper,#ffffff)" in shown and not re.search(r"(?<!,)#1f2933", shown)


def test_two_plots_on_a_page_share_no_name_and_use_their_own() -> None:
    first, second = plots.curves(ROWS).html, plots.curves(ROWS, limit=0.5).html
    names = [set(re.findall(r' id="([^"]+)"', html)) for html in (first, second)]
    assert names[0]
    assert not names[0] & names[1]
    for html, own in zip((first, second), names, strict=True):
        assert set(re.findall(r"url\(#([^)]+)\)", html)) | set(re.findall(r'href="#([^"]+)"', html)) == own


@pytest.mark.parametrize("rows", [[], ROWS[:1], ROWS[2:], [{"step": 1.0, "loss": float("nan")}]])
def test_curves_of_a_run_that_logged_little(rows: list[dict[str, float]]) -> None:
    assert plots.curves(rows).text


@pytest.mark.parametrize(("count", "kind"), [(1999, "svg+xml"), (2000, "png")])
def test_svg_below_two_thousand_points(count: int, kind: str) -> None:
    with plots.styled(width=4) as (figure, [axes]):
        axes.plot(np.zeros(count))
        view = plots.finished(figure, "a line")
    assert view.html.startswith('<div class="wide"><svg') == (kind == "svg+xml")
    if kind == "png":
        image_kind, data = payload(view)
        assert image_kind == kind
        assert int.from_bytes(data[16:20], "big") == 400  # 4 inches at 100 dpi


def test_titles_are_escaped() -> None:
    assert heading("<a>", "b & c") == '<p class="say">&lt;a&gt;</p><p class="note">b &amp; c</p>'
