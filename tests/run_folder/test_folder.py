"""A run folder is new, private where it must be, closed whatever happens, and never hides the first error."""

import json
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ocrlab import run_folder
from ocrlab.errors import DataError, RunError
from ocrlab.run_folder.owner_process import alive, signals_exit
from ocrlab.run_folder.status_file import list_runs, status


def sentinels(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith(".") and path.name.isupper())


def read(folder: Path, name: str) -> dict[str, object]:
    content: dict[str, object] = json.loads((folder / name).read_text())
    return content


def refuse_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)


def test_a_run_that_succeeds(tmp_path: Path) -> None:
    with run_folder.run(tmp_path / "runs", "receipts", "seed: 0\n") as folder:
        assert sentinels(folder.path) == [".RUNNING"]
        assert run_folder.status(folder.path).status == "running"
        folder.succeed({"hmean@0.5": 0.93, "loss": float("nan")})
    assert sentinels(folder.path) == [".SUCCESS"]
    status = read(folder.path, ".SUCCESS")
    assert status["schema"] == 1
    assert status["status"] == "success"
    assert status["metrics"] == {"hmean@0.5": 0.93, "loss": None}
    assert status["error"] is None
    assert str(status["started"]) < str(status["ended"])
    assert run_folder.newest(tmp_path / "runs") == folder.path


def test_layout_and_privacy(tmp_path: Path) -> None:
    folder = run_folder.create(tmp_path, "a", "seed: 0\n")
    assert folder.path.is_absolute()
    assert folder.path.name.endswith("-a")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.path.iterdir()}
    digest = {".config.yaml.digest": 0o600}
    assert modes == {"config.yaml": 0o600, ".RUNNING": 0o600, "checkpoints": 0o700, "flight": 0o700} | digest
    assert folder.config_file.read_text() == "seed: 0\n"
    assert folder.checkpoints.is_dir()
    for path in (folder.environment_file, folder.metrics_file, folder.incident):
        assert path.parent == folder.path
        assert not path.exists()


@pytest.mark.parametrize(
    ("slug", "end"), [("a b/c", "a-b-c"), ("../../etc", "etc"), ("", "run"), ("é", "run"), ("x" * 99, "x" * 60)]
)
def test_a_slug_stays_inside_the_folder(tmp_path: Path, slug: str, end: str) -> None:
    path = run_folder.create(tmp_path, slug).path
    assert path.parent == tmp_path
    assert path.name[15:] == f"-{end}"


def test_many_runs_at_once_get_a_folder_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.strftime", lambda form: "20250101-000000")
    folders: list[Path] = []
    threads = [
        threading.Thread(target=lambda: folders.append(run_folder.create(tmp_path, "a").path)) for _ in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(folders)) == 12
    assert (tmp_path / "20250101-000000-a").is_dir()
    assert (tmp_path / "20250101-000000-a-12").is_dir()


def test_a_folder_that_cannot_be_created_is_an_error_that_says_what_to_do(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="runs=DIR"):
        run_folder.create(tmp_path / "file", "a")
    refuse_to_write(monkeypatch)
    with pytest.raises(RunError, match="No space left"):
        run_folder.create(tmp_path / "runs", "a")
    assert list((tmp_path / "runs").iterdir()) == []  # no incomplete run remains


def test_the_first_error_leaves_as_it_was_raised(tmp_path: Path) -> None:
    first = RuntimeError("CUDA error: an illegal memory access was encountered")
    with pytest.raises(RuntimeError) as caught, run_folder.run(tmp_path, "a") as folder:
        raise first
    assert caught.value is first
    assert first.__context__ is None
    assert sentinels(folder.path) == [".FAILURE"]
    status = read(folder.path, ".FAILURE")
    assert status["status"] == "failure"
    error = status["error"]
    assert isinstance(error, dict)
    assert error["type"] == "RuntimeError"
    assert error["message"] == str(first)
    assert error["where"].startswith(__file__)
    assert "raise first" in error["traceback"]


def test_a_sentinel_that_cannot_be_removed_is_reported_and_does_not_count(tmp_path, monkeypatch, capfd):
    folder = run_folder.create(tmp_path, "a")

    def undeletable(self: Path, missing_ok: bool = False) -> None:
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", undeletable)
        folder.succeed({"hmean@0.5": 0.9})
    assert sentinels(folder.path) == [".RUNNING", ".SUCCESS"]
    assert run_folder.status(folder.path).status == "success"
    assert ".RUNNING cannot be removed" in capfd.readouterr().err


def test_an_error_after_success_is_a_failure_that_keeps_the_metrics(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="report"), run_folder.run(tmp_path, "a") as folder:
        folder.succeed({"hmean@0.5": 0.9})
        raise ValueError("no report")
    assert sentinels(folder.path) == [".FAILURE"]
    assert run_folder.status(folder.path).metrics == {"hmean@0.5": 0.9}


def test_silence_is_never_green(tmp_path: Path) -> None:
    with run_folder.run(tmp_path, "a") as folder:
        pass
    error = run_folder.status(folder.path).error
    assert error is not None
    assert error["type"] == "Unfinished"
    assert run_folder.newest(tmp_path) is None


def test_sigterm_leaves_a_failure_and_the_status_of_the_signal(tmp_path: Path) -> None:
    code = f"import signal, ocrlab.run_folder as f\nwith f.run({str(tmp_path)!r}, 'a'):\n"
    code += "    print(1, flush=True); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        child.send_signal(signal.SIGTERM)
        assert child.wait(30) == 128 + signal.SIGTERM
    [(_, record)] = run_folder.list_runs(tmp_path)
    assert record.status == "failure"
    assert record.error is not None
    assert record.error["message"] == "exit status 143"


def test_a_forked_child_does_not_close_the_run_of_its_parent(tmp_path: Path) -> None:
    code = f"""
import os, ocrlab.run_folder as f
with f.run({str(tmp_path)!r}, 'a') as folder:
    child = os.fork()
    if child == 0:
        raise ValueError("in a worker")
    os.waitpid(child, 0)
    print(f.status(folder.path).status)
    folder.succeed({{}})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "running\n"


def test_resume_goes_on_in_the_same_folder_and_keeps_the_old_failure(tmp_path: Path) -> None:
    for attempt in ("first", "second"):
        again = run_folder.newest(tmp_path, "failure")
        with pytest.raises(ValueError, match=attempt), run_folder.run(tmp_path, "a", again=again) as folder:
            raise ValueError(attempt)
    with run_folder.run(tmp_path, "ignored", again=folder.path) as third:
        assert sentinels(third.path) == [".RUNNING"]
        third.succeed({})
    assert (third.path, third.started) == (folder.path, folder.started)
    assert len(list(tmp_path.iterdir())) == 1
    failures = [read(third.flight, f"failure-{number}.json")["error"] for number in (1, 2)]
    assert [error["message"] for error in failures if isinstance(error, dict)] == ["first", "second"]


def test_resume_refuses_what_lives_and_what_is_done(tmp_path: Path) -> None:
    folder = run_folder.create(tmp_path, "a")
    with pytest.raises(RunError, match=f"process {os.getpid()} on"):
        run_folder.resume(folder.path)
    folder.succeed({})
    with pytest.raises(RunError, match="has finished"):
        run_folder.resume(folder.path)
    assert run_folder.resume(folder.path, finished=True).started == folder.started
    with pytest.raises(RunError, match="not a run folder"):
        run_folder.resume(tmp_path / "absent")


def test_resume_takes_over_from_a_dead_process(tmp_path: Path) -> None:
    code = f"import os, ocrlab.run_folder as f; f.create({str(tmp_path)!r}, 'a'); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", code], check=False, timeout=30)
    [(path, record)] = run_folder.list_runs(tmp_path)
    assert record.status == "died"
    folder = run_folder.resume(path)
    assert run_folder.status(path).status == "running"
    folder.succeed({})
    assert sentinels(path) == [".SUCCESS"]


def test_a_single_resume_of_many_wins(tmp_path: Path) -> None:
    run_folder.create(tmp_path, "a").fail(ValueError("x"))
    [(path, _)] = run_folder.list_runs(tmp_path)
    code = f"""
import ocrlab.run_folder as f
try:
    f.resume({str(path)!r})
    print("won", flush=True)
except f.folder.RunError:
    print("lost", flush=True)
input()
"""
    arguments = [sys.executable, "-c", code]
    children = [subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    outputs = [child.stdout.readline().strip() for child in children if child.stdout]
    for child in children:
        child.communicate("\n")
    assert sorted(outputs) == ["lost", "lost", "lost", "won"]


def put_sentinel(folder: Path, name: str, content: object) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def test_the_name_of_the_file_decides_and_the_final_sentinel_counts(tmp_path: Path) -> None:
    both = put_sentinel(
        put_sentinel(tmp_path / "both", ".RUNNING", {"status": "running"}), ".FAILURE", {"status": "running"}
    )
    assert status(both).status == "failure"


@pytest.mark.parametrize("content", ["", "{", "[]", {"schema": 2, "status": "success"}, {"schema": "x"}])
def test_what_cannot_be_read_is_refused_alone_and_reported_in_a_list(tmp_path: Path, content: object) -> None:
    bad = put_sentinel(tmp_path / "bad", ".SUCCESS", content)
    good = put_sentinel(tmp_path / "good", ".SUCCESS", {"status": "success", "started": "2025-01-01T00:00:00+00:00"})
    with pytest.raises(DataError, match=r"\.SUCCESS"):
        status(bad)
    records = dict(list_runs(tmp_path))
    assert records[good].error is None
    error = records[bad].error
    assert error is not None
    assert error["type"] == "unreadable"


def test_a_process_that_ended_is_dead_even_before_it_is_reaped() -> None:
    code = "import json; from ocrlab.run_folder.owner_process import identity\n"
    code += "print(json.dumps(identity()), flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        there = json.loads(child.stdout.readline())
        assert alive(there)
        child.stdin.close()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, but still a zombie
        assert not alive(there)
    assert not alive(there)


def test_a_handler_of_somebody_else_is_left_alone() -> None:
    numbers: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: numbers.append(number))
    try:
        with signals_exit():
            os.kill(os.getpid(), signal.SIGTERM)
        assert numbers == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_forked_child_dies_of_the_signal_itself() -> None:
    code = """
import os, signal, time
from ocrlab.run_folder.owner_process import signals_exit
ready, tell = os.pipe()
with signals_exit():
    child = os.fork()
    if child == 0:
        os.write(tell, b"x")
        time.sleep(20)  # `pause` would wait for ever for a signal that came before it
    os.read(ready, 1)
    os.kill(child, signal.SIGTERM)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "-15\n"


def test_a_process_elsewhere_is_not_declared_dead() -> None:
    assert alive({"pid": 1, "host": "another-machine"})


def test_values_of_the_wrong_type_do_not_get_in(tmp_path: Path) -> None:
    content = {"metrics": {"hmean@0.5": 0.9, "loss": None, "note": "x"}, "error": "text", "started": 5, "ended": 6}
    record = status(put_sentinel(tmp_path / "odd", ".SUCCESS", content))
    assert set(record.metrics) == {"hmean@0.5", "loss"}
    assert (record.error, record.started, record.ended) == (None, "5", "6")
