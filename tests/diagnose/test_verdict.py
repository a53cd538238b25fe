"""A verdict in words and on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ocrlab.diagnose import verdict
from ocrlab.diagnose.classify import classify
from ocrlab.records import Cause, Evidence, Incident, RuledOut, Verdict

KNOWN = Verdict(
    status="killed",
    signal="SIGKILL",
    symptom="host.oom_kill",
    causes=[
        Cause("host.oom_kill", 0.95, [Evidence("kernel_log.txt", 12, "oom-kill: `x`")], "dmesg    (shows it)", "less")
    ],
    ruled_out=[RuledOut("loader.worker_crash", "line 3 follows")],
    missing=["cgroup counters"],
)


def test_one_sentence_says_what_where_and_how_sure() -> None:
    text = verdict.sentence(KNOWN)
    for part in ("SIGKILL", "host.oom_kill", "0.95", "kernel_log.txt line 12", "certain"):
        assert part in text
    assert "\n" not in text


def test_the_page_has_its_parts_in_order() -> None:
    page = verdict.markdown(KNOWN)
    parts = [
        "host.oom_kill",
        "## Evidence",
        "kernel_log.txt:12",
        "## Ruled out",
        "line 3 follows",
        "## Next experiment",
    ]
    parts += ["    dmesg", "shows it", "## Fix", "less", "cgroup counters"]
    places = [page.index(part) for part in parts]
    assert places == sorted(places)


@pytest.mark.parametrize("status", ["failed", "killed", "hung", "suspected", "log", "something new"])
def test_unknown_says_so_and_what_is_missing(status: str) -> None:
    page = verdict.markdown(Verdict(status=status, missing=["the exit code"]))
    assert "unknown" in page
    assert "the exit code" in page
    assert "## Fix" not in page


def test_what_is_written_is_whole_and_without_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "abcdefgh12345678")
    texts = {"log_tail.txt": "key abcdefgh12345678\nMemoryError", "../evil.txt": "x"}
    incident = Incident("failed", 1, None, texts)
    verdict.write(tmp_path / "incident", classify(incident), incident)
    assert sorted(path.name for path in (tmp_path / "incident").iterdir()) == [
        "log_tail.txt",
        "verdict.json",
        "verdict.md",
    ]
    record = json.loads((tmp_path / "incident/verdict.json").read_text())
    assert (record["schema"], record["causes"][0]["id"]) == (1, "host.alloc_fail")
    assert set(record) == {"schema", "id", "status", "exit_code", "signal", "symptom", "causes", "ruled_out", "missing"}
    assert "abcdefgh" not in "".join(path.read_text() for path in (tmp_path / "incident").iterdir())
    assert not (tmp_path / "evil.txt").exists()
