"""Files are whole or not there, private ones from their first byte on; errors are told completely."""

import json
import os
import stat
from pathlib import Path

import pytest

from ocrlab.run_folder.atomic_files import Table, write_bytes, write_json, write_text
from ocrlab.run_folder.exception_record import TRACEBACK_LIMIT, describe


def test_json_is_valid_and_holds_null_for_what_json_cannot_hold(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"loss": float("nan"), "best": float("-inf"), "folder": Path("x"), "text": "ä"})
    expected = {"loss": None, "best": None, "folder": "x", "text": "ä"}
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8"), parse_constant=pytest.fail) == expected


@pytest.mark.parametrize(("private", "mode"), [(True, 0o600), (False, 0o644)])
def test_mode(tmp_path: Path, private: bool, mode: int) -> None:
    before = os.umask(0o022)
    try:
        write_text(tmp_path / "file", "text", private=private)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_bytes(tmp_path / "file", b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as error:
        write_bytes(tmp_path / "file", b"new")
    assert error.value.filename == str(tmp_path / "file"), "not the temporary name"
    assert (tmp_path / "file").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_table_grows_by_rows_and_by_columns(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    table = Table(path)
    table.write({"step": 1, "loss": 0.5})
    table.write({"step": 2, "loss": 0.25, "hmean@0.5": 0.9})
    Table(path).write({"loss": float("nan"), "step": 3})
    assert path.read_text() == "step,loss,hmean@0.5\n1,0.5,\n2,0.25,0.9\n3,nan,\n"


def test_table_drops_a_torn_row(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("step,loss\n1,0.5\n2,0.")
    table = Table(path)
    table.write({"step": 2, "loss": 0.25})
    assert path.read_text() == "step,loss\n1,0.5\n2,0.25\n"


def test_what_is_no_file_is_written_to_and_stays_what_it_is(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_text(pipe, "told\n")
        assert os.read(reader, 100) == b"told\n" and stat.S_ISFIFO(pipe.stat().st_mode)
    finally:
        os.close(reader)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def caught(action: object, *arguments: object) -> BaseException:
    with pytest.raises(BaseException) as info:  # noqa: PT011
        action(*arguments)  # type: ignore[operator]
    return info.value


def test_where_is_the_innermost_frame_and_your_code_the_innermost_outside_of_packages() -> None:
    description = describe(caught(lambda: json.loads("{")))
    assert description["type"] == "json.decoder.JSONDecodeError"
    assert "decoder.py:" in description["where"]
    assert description["your_code"].startswith(__file__)
    assert description["your_code"].endswith("<lambda>")
    assert "json.loads" in description["traceback"]


@pytest.mark.parametrize(
    ("error", "message"), [(KeyboardInterrupt(), "interrupted"), (SystemExit(143), "exit status 143")]
)
def test_interrupts_and_exits_are_described_in_words(error: BaseException, message: str) -> None:
    description = describe(error)
    assert description["message"] == message
    assert description["where"] is None  # it was never raised


def test_a_long_traceback_keeps_its_head_and_its_tail() -> None:
    def fail() -> None:
        raise RuntimeError("x" * 2 * TRACEBACK_LIMIT + "the end")

    text = describe(caught(fail))["traceback"]
    assert len(text) < TRACEBACK_LIMIT + 100
    assert text.startswith("Traceback")
    assert text.endswith("the end\n")


def test_rewind_drops_what_a_resumed_run_writes_again(tmp_path: Path) -> None:
    table = Table(tmp_path / "metrics.csv")
    for step in (10, 20, 30):
        table.write({"step": step, "loss": 1 / step})
    table.rewind(20)
    table.write({"step": 30, "loss": 0})
    assert [line.split(",")[0] for line in table.path.read_text().splitlines()] == ["step", "10", "20", "30"]
    assert table.path.read_text().endswith("30,0\n")
