"""A bug report fills itself in from whatever was left, and says what it does not know."""

import json
import re
import socket
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from ocrlab import run_folder
from ocrlab.debug.diagnosis import classify, verdict_files
from ocrlab.errors import DataError
from ocrlab.records import Incident
from ocrlab.reports.bug_report import build, sources
from ocrlab.reports.bug_report.markup import Code, Section, Table, code, markdown, page
from ocrlab.reports.bug_report.sections import command, how_far, title
from ocrlab.reports.bug_report.sources import collect

LOG = """epoch 1 step=3 loss=0.5
Traceback (most recent call last):
  File "/x/train.py", line 12, in <module>
    main()
  File "/x/train.py", line 9, in read
    boxes[7]
IndexError: index 7 is out of bounds for axis 0 with size 4
"""
SECTIONS = ("Summary", "Environment", "Steps to reproduce", "Expected and actual", "Stack", "Impact", "Hypotheses")
SECTIONS += ("Ruled out", "Proposed fix", "Tests", "Progress", "Not known")


def crashed(runs: Path, log: str = LOG, status: str = "failed", **facts: Any) -> Path:
    """Return a run folder as `ocrlab watch` leaves it."""
    folder = run_folder.create(runs, "train")
    incident = Incident(status, 1 if status == "failed" else None, None, {"log_tail.txt": log}, "", facts)
    verdict_files.write_verdict(folder.incident, classify.classify(incident), incident)
    folder.fail({"type": "Failed", "message": "failed, exit status 1", "where": None}, verdict="data.index_range")
    return folder.path


def rendered(path: Path, verified: dict[str, Any] | None = None) -> str:
    report = build.build(collect(path), verified)
    for name in SECTIONS:
        assert f"## {name}\n" in report.markdown and f"<h2>{name}</h2>" in report.html, name
    return report.markdown


def test_a_run_that_failed(runs: Path) -> None:
    report = build.build(collect(crashed(runs, run_seconds=3.25)))
    assert report.front["title"] == "IndexError: index 7 is out of bounds for axis 0 with size 4 in read (train.py)"
    assert report.front["status"] == "open" and report.front["category"] == "data"
    text = rendered(runs / next(runs.iterdir()).name)
    for line in (
        "`data.index_range`",
        "`log_tail.txt:7` `IndexError: index 7 is out of bounds",
        "It ended with exit status 1 after 3.2 s.",
        "in `read`, `/x/train.py:9`",
        "- [x] failure recorded",
        "- [ ] fix tried",
        "Not verified",
    ):
        assert line in text, line


@pytest.mark.parametrize("words, program", [
    (["python", "-m", "ocrlab", "watch", "--silence", "9", "--", "python", "t.py"], ["python", "t.py"]),
    (["python", "/v/bin/ocrlab", "train", "lr=1"], ["ocrlab", "train", "lr=1"]),
    (["python", "mine.py"], ["python", "mine.py"]),
    (["python", "-m", "ipykernel_launcher", "-f", "x"], None),
    (["python", "-m", "ocrlab", "watch"], None),
    (None, None),
    ([1, 2], None),
])  # fmt: skip
def test_the_command_is_that_of_the_program(words: Any, program: Any, runs: Path) -> None:
    sources = collect(crashed(runs))
    sources.process["command"] = words
    assert command(sources) == program
    assert ("The command is unknown" in build.build(sources).markdown) == (program is None)


def test_what_running_it_again_showed(runs: Path) -> None:
    row = {"same": True, "told": "data.index_range", "seconds": 1.5}
    ran = {"wanted": "data.index_range: x", "same": 1, "runs": [row, {**row, "same": False, "told": "passed"}]}
    path = crashed(runs)
    text = rendered(path, ran)
    assert (
        "the same failure occurred in 1 of 2 runs" in text
        and "status: reproduced" in text
        and "- [x] reproduced" in text
    )
    assert "status: not reproduced" in rendered(path, {**ran, "same": 0})
    assert "could not be verified: it was elsewhere" in rendered(path, {"why": "it was elsewhere", "runs": []})


def test_results_of_replay_and_bisect(runs: Path) -> None:
    path = crashed(runs)
    fault = {"kind": "exception", "path": "decoder.fusion", "exception": "IndexError: x", "step": 3}
    cells = [{"cell": "as it was", "fault": fault, "seconds": 2.0}, {"cell": "fp32", "fault": None, "seconds": 1.0}]
    replay = {
        "schema": 1, "answer": "first fault at step 3, forward", "fault": fault, "reproduced": True,
        "cells": cells,
    }  # fmt: skip
    run_folder.write_json(path / "incident" / "replay.json", replay)
    factors = [{"name": "workers"}, {"name": "compile"}]
    cells.append({"cell": "anomaly mode", "fault": None, "seconds": 1.0})
    table = [{"flipped": ["workers"], "ended": "passed", "seconds": 3.0}]
    bisect = {"status": "found", "sentence": "it comes from workers (4)", "culprits": ["workers"], "posterior": 0.97}
    bisect |= {"until_mended": "runtime.workers=0", "factors": factors, "table": table}
    run_folder.write_json(path / "incident" / "bisect.json", bisect)
    text = rendered(path)
    for line in (
        "status: reproduced",
        "| Setting `workers` | supported | 0.97 |",
        "| Setting `compile` | refuted |",
        "Until it is fixed: `runtime.workers=0`, as `bisect.json` found.",
        "In `replay.json` the step that failed had no fault with `fp32`.",
        "| `as it was` | `IndexError: x in decoder.fusion` | 2.0 |",
        "- [x] first fault placed",
        "- [x] a workaround tried",
    ):
        assert line in text, line
    assert "no fault with `anomaly mode`" not in text


def test_numbers_that_are_none_are_a_failure_also_of_a_run_that_ended_well(runs: Path) -> None:
    folder = run_folder.create(runs, "train")
    folder.metrics_file.write_text("step,loss\n1,0.5\n2,nan\n3,nan\n")
    folder.succeed({"loss": 1.0})
    text, sources = rendered(folder.path), collect(folder.path)
    assert title(sources) == "loss becomes nan" and how_far(sources).startswith("step 3 in ")
    assert "# loss becomes nan" in text and "`loss` is `nan` from line 3 of `metrics.csv`" in text


def test_a_hang_and_out_of_memory_and_a_run_that_is_gone(tmp_path: Path) -> None:
    hang = crashed(tmp_path / "a", "epoch 1\n", "hung", silent_seconds=60.0, run_seconds=80.0)
    assert "It hung: it stopped making progress" in rendered(hang) and "It made no progress for 60 s." in rendered(hang)
    oom = crashed(tmp_path / "b", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    assert "category: gpu" in rendered(oom) or "gpumem" in rendered(oom)
    gone = run_folder.create(tmp_path / "c", "x").path
    process = json.loads((gone / "flight" / "process.json").read_text())
    (gone / "flight" / "process.json").write_text(json.dumps({**process, "pid": 2**22 + 5}))
    assert "Its process is gone and left no message." in rendered(gone)


@pytest.mark.parametrize("torn", ["{", "[]", '{"schema": 1, "causes": 3}', "\x00\xff", "[" * 100_000])
def test_half_written_folders_are_reported_as_far_as_they_go(torn: str, runs: Path) -> None:
    path = crashed(runs)
    for name in ("incident/verdict.json", "incident/facts.json", "environment.json", "flight/process.json"):
        (path / name).write_text(torn)
    (path / "incident" / "replay.json").write_text(torn)
    (path / "incident" / "bisect.json").write_text('{"table": 3, "factors": [1], "culprits": "x", "status": "found"}')
    (path / "metrics.csv").write_text("step,loss\n1,0.5\n2")
    assert "IndexError" in rendered(path)


def test_a_folder_without_a_sentinel_and_an_incident_alone(runs: Path, tmp_path: Path) -> None:
    path = crashed(runs)
    alone = tmp_path / "sent-to-me"
    (path / "incident").rename(alone)
    text = rendered(alone)
    assert "`data.index_range`" in text and "how it ended is known from its verdict and logs only" in text
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="contains no log"):
        collect(tmp_path / "empty")
    with pytest.raises(DataError, match="not there"):
        collect(tmp_path / "gone")


def test_a_link_that_leads_out_of_a_strangers_folder_is_refused(runs: Path, tmp_path: Path) -> None:
    path = crashed(runs)
    (tmp_path / "mine.txt").write_text("private words\n")
    (path / "incident" / "log_tail.txt").unlink()
    (path / "incident" / "log_tail.txt").symlink_to(tmp_path / "mine.txt")
    with pytest.raises(DataError, match="leads out of"):
        collect(path)


def test_no_names_and_no_secrets_also_where_markdown_escapes_them(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "zoe_quux")
    monkeypatch.setattr(socket, "gethostname", lambda: "lab_of_zoe")
    log = LOG.replace("/x/train.py", "/data/zoe_quux/lab_of_zoe/train.py").replace("index 7", "key sk-" + "aB3_" * 8)
    report = build.build(collect(crashed(runs, log)))
    for text in (report.markdown, report.html):
        assert "quux" not in text and "of_zoe" not in text and "of\\_zoe" not in text and "aB3" not in text
    assert report.redacted > 0 and f"{report.redacted} values replaced" in report.markdown


def test_a_notebook_that_failed(tmp_path: Path) -> None:
    error = new_output("error", ename="ValueError", evalue="bad page", traceback=LOG.splitlines())
    notebook = new_notebook(cells=[new_code_cell("read()", outputs=[error])])
    notebook.metadata["papermill"] = {"input_path": "03_train.ipynb", "parameters": {"batch_size": 4}}
    nbformat.write(notebook, tmp_path / "out.ipynb")
    text = rendered(tmp_path / "out.ipynb")
    assert "ocrlab run 03_train.ipynb -p batch_size 4" in text and "Every cell runs to its end." in text


SOURCE = "import json\n\n\ndef read(page):\n    return json.loads(page)['boxes']\n\n\nread('{}')\n"


def traceback(file: Path) -> str:
    lib = "/usr/lib/python3.11/json/__init__.py"
    return (
        "epoch 1\nTraceback (most recent call last):\n"
        f"  File \"{file}\", line 8, in <module>\n    read('{{}}')\n"
        f'  File "{file}", line 5, in read\n    return json.loads(page)\n'
        f'  File "{lib}", line 346, in loads\n    return x\n'
        "KeyError: 'boxes'\nafterwards: something else\n"
    )


def test_the_programs_own_innermost_line_with_its_source(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(SOURCE)
    stack = sources.find_stack({"log_tail.txt": traceback(file)}, own=True)
    assert stack.frame and (stack.frame.function, stack.frame.line, stack.file) == ("read", 5, "log_tail.txt")
    assert (
        ">     5      return json.loads(page)['boxes']" in stack.source and "      4  def read(page):" in stack.source
    )
    assert stack.whole.endswith("KeyError: 'boxes'") and "epoch" not in stack.whole


def test_of_a_strangers_run_no_file_is_opened(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(SOURCE)
    stack = sources.find_stack({"log_tail.txt": traceback(file)}, own=False)
    assert stack.frame and stack.source == "" and "nothing proves" in stack.why_none
    secret = tmp_path / "id_rsa.pem"
    secret.write_text("x\n" * 20)
    assert sources.source_lines(secret, 5) == "" and sources.source_lines(tmp_path / "gone.py", 1) == ""
    assert sources.source_lines(file, 99) == "" and sources.source_lines(Path("a\0.py"), 1) == ""
    key = tmp_path / "id_rsa"
    key.write_text("x\n" * 20)
    assert sources.source_lines(key, 5) == "", "without a suffix only a script with #! is one"


def test_a_huge_traceback_is_cut_in_its_middle() -> None:
    text = (
        "Traceback (most recent call last):\n"
        + '  File "/x/a.py", line 1, in f\n' * 5000
        + "RecursionError: too deep\n"
    )
    whole, _ = sources.last_failure(text)
    assert len(whole) < 1.1 * sources.LONGEST and whole.endswith("RecursionError: too deep")


EVIL = "</code></pre><script>alert(1)</script> ``` `x` | **b** @someone #12 [a](b) <!-- \x1b[31m\u202e\x00"
BLOCKS = [
    f"words {EVIL} {code(EVIL)} end", [EVIL, code(EVIL)], Table(["a", "b"], [[EVIL, code(EVIL)]]),
    Code(EVIL, "text", "folded <b>"), Code(EVIL), {EVIL: True, code(EVIL): False},
]  # fmt: skip


def test_in_html_everything_is_escaped() -> None:
    html = page(EVIL, {"id": EVIL, "tags": [EVIL]}, [Section("One", BLOCKS)], EVIL)
    assert "<script" not in html and "alert(1)" in html and "\x1b" not in html and "\u202e" not in html
    assert {"script", "/script", "b", "/b"}.isdisjoint(re.findall(r"<(/?\w+)", html))
    assert "default-src 'none'" in html and html.count("<h1>") == 1
    assert "✓</span> " in html and " <i>done</i>" in html and " <i>not done</i>" in html, "without colours too"


def test_in_markdown_words_mean_nothing_and_code_stays_code() -> None:
    text = markdown("t", {"id": "X"}, [Section("One", BLOCKS)], "note")
    outside = re.sub(r"^(`{3,})[\s\S]*?\n\1$", "", text, flags=re.MULTILINE)
    outside = re.sub(r"(?<![`\\])(`+)(?!`).+?(?<![`\\])\1(?!`)", "", outside)
    assert not re.search(r"(?<!\\)<script", outside)
    assert not re.search(r"(?<!\\)(?:@someone|#12|\*\*b|\[a\])", outside)
    fences = re.findall(r"^`{3,}", text, re.MULTILINE)
    assert fences == ["````"] * 4, "a longer fence than any in the text, opened and closed"
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 3 and all(len(re.findall(r"(?<!\\)\|", row)) == 3 for row in rows)


def test_what_pastes_into_an_issue() -> None:
    front = {"title": 'a: "b"', "id": "OCR-1", "tags": ["x.y", "z w"], "date": "2026-01-02T03:04:05"}
    sections = [Section("S", [f"in {code('f')}, at", {"done": True, "open": False}])]
    text = markdown("T", front, [*sections, Section("L", [Code("x\ny", "sh", "long")])], "n")
    assert text.startswith('---\ntitle: "a: \'b\'"\nid: OCR-1\ntags: [x.y, z w]\ndate: "2026-01-02T03:04:05"\n---\n')
    assert "in `f`, at" in text and "- [x] done\n- [ ] open" in text
    assert "<details>\n<summary>long</summary>\n\n```sh\nx\ny\n```\n\n</details>" in text


@pytest.mark.parametrize("text, shown", [("a`b", "``a`b``"), ("`a", "`` `a ``"), ("a\nb  c", "`a b c`"), ("", "")])
def test_code_with_backticks_and_lines(text: str, shown: str) -> None:
    assert markdown("T", {}, [Section("S", [code(text)])], "").splitlines()[7] == shown
