"""Code runs in a child of the notebook: what comes back, what is shown, and that nothing remains."""

import _thread
import os
import queue
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import IPython.display
import pytest

from ocrlab.debug.watch import incident
from ocrlab.debug.watch.supervisor import Options
from ocrlab.errors import ConfigError, RunError
from ocrlab.notebook import child_runner
from ocrlab.records import Cause, Verdict


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return what is displayed."""
    views: list[Any] = []
    monkeypatch.setattr(IPython.display, "display", views.append)
    return views


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a module of functions that the child can import too."""
    (tmp_path / "work_of_child.py").write_text(
        "import ctypes, os, sys, time\n"
        "def add(a, b=1):\n    print('adding')\n    print('quietly', file=sys.stderr)\n    return a + b, os.getpid()\n"
        "def report(steps, progress):\n"
        "    for step in range(1, steps + 1):\n        progress({'kind': 'train', 'step': step, 'total': steps})\n"
        "def die():\n    ctypes.string_at(0)\n"
        "def leave():\n    os._exit(0)\n"
        "def wrong():\n    raise ValueError('no')\n"
        "def refused():\n    from ocrlab.errors import ConfigError\n    raise ConfigError('No module is called x')\n"
        "def wait(file):\n    os.write(os.open(file, os.O_CREAT | os.O_WRONLY), b'%d' % os.getpid())\n"
        "    time.sleep(300)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import work_of_child

    yield work_of_child
    sys.modules.pop("work_of_child")


def test_the_value_comes_back_from_another_process_and_its_output_streams(module, tmp_path, capsys):
    value, pid = child_runner.call(module.add, (2,), {"b": 3}, Options(tmp_path / "run"))
    assert value == 5
    assert pid != os.getpid()
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("adding\n", "quietly\n")


def test_a_child_that_dies_shows_a_verdict_and_the_kernel_lives(module, tmp_path, shown, capsys):
    with pytest.raises(child_runner.ChildFailed, match="The child died of SIGSEGV") as caught:
        child_runner.call(module.die, (), {}, Options(tmp_path / "run"))
    assert caught.value.word == "CRASHED"
    assert caught.value.record(7)["exit_status"] == 139
    assert "native.segv" in shown[0].html
    assert "ocrlab watch:" not in capsys.readouterr().err  # said once, by the block
    assert (tmp_path / "run" / "incident" / "verdict.json").exists()
    assert caught.value._render_traceback_() == [f"ChildFailed: {caught.value}"]


def test_a_limit_is_reported_and_not_the_signal_that_it_sent(module: Any, tmp_path: Path, shown: list[Any]) -> None:
    began = str(tmp_path / "began")
    with pytest.raises(child_runner.ChildFailed, match="over its limit of 1 s") as caught:
        child_runner.call(module.wait, (began,), {}, Options(tmp_path / "run", timeout=1.0))
    assert caught.value.word == "STUCK"
    assert "SIGTERM" not in str(caught.value)
    with pytest.raises(child_runner.ChildFailed, match="nothing moved for 1 s"):
        child_runner.call(module.wait, (began,), {}, Options(tmp_path / "again", silence=1.0, on_hang="kill"))


@pytest.mark.parametrize(
    ("causes", "printed"), [([Cause("native.segv", 0.9)], ""), ([], "ocrlab watch: the program hangs; it is ended\n")]
)
def test_the_line_of_the_watch_is_printed_only_where_no_block_shows_it(causes, printed, tmp_path, capsys):
    chunks: queue.SimpleQueue[tuple[int, bytes]] = queue.SimpleQueue()
    text = incident.summary("the program hangs; it is ended", Verdict(None, "hung", causes=causes), tmp_path)
    chunks.put((2, f"{text}\n".encode()))
    child_runner.Screen(chunks).update()
    assert capsys.readouterr().err == printed


def test_a_child_that_leaves_by_itself_brings_nothing_back(module: Any, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="ended the process itself; nothing came back"):
        child_runner.call(module.leave, (), {}, Options(tmp_path / "run"))


def test_an_exception_shows_the_traceback_of_the_function_alone(module, tmp_path, shown, capsys):
    with pytest.raises(child_runner.ChildFailed) as caught:
        child_runner.call(module.wrong, (), {}, Options(tmp_path / "run"))
    assert caught.value.word == "FAIL"
    printed = capsys.readouterr().err
    assert "ValueError: no" in printed
    assert "notebook/child.py" not in printed


def test_an_interrupt_ends_the_child(module: Any, tmp_path: Path) -> None:
    """As Jupyter does it: SIGINT to the kernel, whose child is in a session of its own."""
    began = tmp_path / "began"

    def interrupt() -> None:
        while not (began.exists() and began.read_text()):
            time.sleep(0.02)
        _thread.interrupt_main()

    threading.Thread(target=interrupt, daemon=True).start()
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(child_runner.Stopped) as caught:
            child_runner.call(module.wait, (str(began),), {}, Options(tmp_path / "run"))
    finally:
        signal.signal(signal.SIGINT, old)
    assert not Path(f"/proc/{began.read_text()}").exists()
    assert isinstance(caught.value, KeyboardInterrupt)
    assert caught.value.ended and caught.value.ended.folder == tmp_path / "run"
    assert len(caught.value._render_traceback_()) == 1


def test_a_function_of_the_notebook_itself_is_refused_with_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"%%isolated"):
        child_runner.call(lambda: 1, (), {}, Options(tmp_path / "run"))
    with pytest.raises(ConfigError, match="cannot be sent"):
        child_runner.call(time.sleep, (threading.Lock(),), {}, Options(tmp_path / "run"))


def test_a_flood_is_cut_where_a_browser_would_drown(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(child_runner, "LONGEST", 1000)
    command = [sys.executable, "-c", "for _ in range(1000): print('x' * 99)"]
    ended = child_runner.follow(command, Options(tmp_path / "run"))
    assert ended.status == "success"
    printed = capsys.readouterr().out
    assert len(printed) < 1200
    assert "the rest is not shown here" in printed
