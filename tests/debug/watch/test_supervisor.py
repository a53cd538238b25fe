"""Real programs that end in every way: exit status, verdict and sentinel, and nothing is left behind."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ocrlab.debug.watch.supervisor import Options, watch
from ocrlab.errors import ConfigError, RunError

DEATHS = {
    "import ctypes; ctypes.string_at(0)": ("killed", "SIGSEGV", 139),
    "import os; os.abort()": ("killed", "SIGABRT", 134),
    "import os; os.kill(os.getpid(), 9)": ("killed", "SIGKILL", 137),
    "import sys; sys.exit(3)": ("failed", 3, 3),
    "import sys; sys.exit('no more')": ("failed", 1, 1),
    "raise ValueError('the reason')": ("failed", 1, 1),
}


@pytest.mark.parametrize("code", DEATHS)
def test_a_failure_has_status_verdict_and_sentinel(code, watched):
    status, how, exit_status = DEATHS[code]
    done = watched("print('before'); " + code)
    assert (done.status, done.out, done.sentinel) == (exit_status, b"before\n", ".FAILURE")
    assert done.verdict["status"] == status
    assert how in (done.verdict["signal"], done.verdict["exit_code"])
    assert "incident/verdict.md" in done.err
    assert "before" in (done.folder / "incident" / "log_tail.txt").read_text()


def test_a_program_that_does_well_leaves_no_incident(watched):
    done = watched("print('x', end='')")
    assert (done.status, done.out, done.err, done.sentinel) == (0, b"x", "", ".SUCCESS")
    assert not (done.folder / "incident").exists()


def test_streams_stay_apart_and_whole(watched):
    code = "import sys, os\nos.write(1, bytes(range(256)) * 40000)\nos.write(2, b'half a line')"
    done = watched(code)
    assert done.out == bytes(range(256)) * 40000
    assert done.err == "half a line"


def test_stdin_passes_through(watched):
    assert watched(["cat"], stdin=b"\0one\ntwo").out == b"\0one\ntwo"


def test_a_closed_stdout_is_not_the_end(watched):
    done = watched("import os, time; os.close(1); os.close(2); time.sleep(0.5); os._exit(7)")
    assert done.status == 7


def test_a_working_folder_that_the_program_removes_costs_no_verdict(watched, tmp_path):
    run, gone = tmp_path / "run", tmp_path / "gone"
    gone.mkdir()
    words = ["sh", "-c", "cd ..; rmdir gone; echo ValueError: x >&2; exit 3"]
    command = [sys.executable, "-m", "ocrlab", "watch", "--run-dir", str(run), "--", *words]
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(command, cwd=gone, env=env, capture_output=True)
    assert done.returncode == 3, done.stderr
    assert (run / "incident" / "verdict.json").is_file(), done.stderr


@pytest.mark.parametrize(("command", "status"), [(["no-such-program"], 127), (["/"], 126)])
def test_a_command_that_cannot_be_executed(command, status, watched):
    done = watched(command)
    assert (done.status, done.sentinel) == (status, ".FAILURE")
    assert command[0] in done.err


@pytest.mark.parametrize("words", [["--silence", "0"], ["--timeout", "-1"], ["--on-hang", "dance"], ["--nonsense"]])
def test_wrong_use_is_2_and_runs_nothing(words, watched, tmp_path):
    done = watched("print('it ran')", *words)
    assert (done.status, done.out) == (2, b"")
    assert not (tmp_path / "out").exists()


def test_a_grandchild_that_keeps_the_pipe_is_not_waited_for(watched):
    began = time.monotonic()
    done = watched(["sh", "-c", "sleep 50 & echo done"])
    assert (done.status, done.out) == (0, b"done\n")
    assert time.monotonic() - began < 20


def test_a_daemon_of_its_own_session_does_not_outlive_a_failure(watched):
    done = watched(["sh", "-c", "setsid sleep 50 & setsid sh -c 'trap : TERM; sleep 50; sleep 50' & sleep 0.3; exit 5"])
    assert done.status == 5


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_are_passed_on(started, number, left):
    code = "import time\ntry:\n print('ready', flush=True); time.sleep(50)\nfinally:\n print('closed', flush=True)"
    code = "import signal, sys\nfor n in (1, 15): signal.signal(n, lambda n, f: sys.exit(128 + n))\n" + code
    with started(code) as watcher:
        watcher.stdout.readline()
        watcher.send_signal(number)
        assert watcher.stdout.readline() == b"closed\n"
        assert watcher.wait(20) == 128 + number


def test_a_second_sigterm_ends_what_ignores_the_first(started, left):
    code = "import signal, time; signal.signal(15, lambda *a: print('no', flush=True)); print('ready', flush=True)\n"
    with started(code + "while True: time.sleep(1)") as watcher:
        watcher.stdout.readline()
        watcher.terminate()
        assert watcher.stdout.readline() == b"no\n"
        watcher.terminate()  # timeout(1) signals its child, and then the whole group: that is one
        time.sleep(0.7)
        assert watcher.poll() is None
        watcher.terminate()
        assert watcher.wait(20) == 137


@pytest.mark.parametrize("victim", ["watcher", "guard"])
def test_whoever_is_killed_no_orphan_stays_and_nothing_is_green(started, victim, tmp_path, left):
    code = "import subprocess, os; subprocess.Popen(['sleep', '50']); print(os.getppid(), flush=True)\n"
    with started(code + "import time; time.sleep(50)") as watcher:
        guard = int(watcher.stdout.readline())
        os.kill(watcher.pid if victim == "watcher" else guard, signal.SIGKILL)
        status = watcher.wait(20)
        end = time.monotonic() + 10
        while left() and time.monotonic() < end:
            time.sleep(0.05)
        assert left() == []
        assert status == (-9 if victim == "watcher" else 137)
        assert not (tmp_path / "out" / ".SUCCESS").exists()


def test_a_slow_reader_gets_everything(started):
    with started(["head", "-c", "20000000", "/dev/zero"]) as watcher:
        time.sleep(1.5)
        assert len(watcher.stdout.read()) == 20_000_000
        assert watcher.wait(20) == 0


def test_a_reader_that_goes_away_ends_the_program(env, tmp_path):
    command = f"{sys.executable} -m ocrlab watch --run-dir out -- yes | head -n 1"
    done = subprocess.run(["bash", "-c", f"{command}; echo ${{PIPESTATUS[0]}}"], env=env, cwd=tmp_path,
                          capture_output=True, timeout=60, check=True)  # fmt: skip
    assert done.stdout == b"y\n141\n"


def test_signal_handlers_are_restored(tmp_path, monkeypatch):
    before = [signal.getsignal(number) for number in range(1, 32)]
    watch(["true"], Options(run_dir=tmp_path / "out"), output=lambda *_: None)
    assert [signal.getsignal(number) for number in range(1, 32)] == before


def test_wrong_options_are_refused():
    with pytest.raises(ConfigError, match="no command"):
        watch([])
    with pytest.raises(ConfigError, match="silence"):
        watch(["true"], Options(silence=float("nan")))


def test_the_folder_of_a_run_that_lives_is_refused(started, tmp_path):
    with started("print(1, flush=True); import time; time.sleep(50)") as watcher:
        watcher.stdout.readline()
        with pytest.raises(RunError, match="still running"):
            watch(["true"], Options(run_dir=tmp_path / "out"), output=lambda *_: None)
        watcher.terminate()
        watcher.wait(20)


HANDLES = "import signal, time; signal.signal(2, lambda *_: print('no', flush=True)); print('ready', flush=True)\n"
HANDLES += "while True: time.sleep(1)"


def test_every_ctrl_c_is_the_programs(started, left):
    with started(HANDLES) as watcher:
        watcher.stdout.readline()
        for _ in range(3):
            watcher.send_signal(signal.SIGINT)
            assert watcher.stdout.readline() == b"no\n"
        watcher.send_signal(signal.SIGQUIT)
        watcher.stdout.read()
        assert watcher.wait(30) == 128 + signal.SIGQUIT


def test_a_killed_watcher_leaves_no_scratch_folder(started, env, tmp_path, left):
    (tmp_path / "tmp").mkdir()
    code = "from ocrlab.run_folder import heartbeat; import time; heartbeat.beat(step=1); print(1, flush=True)\n"
    with started(code + "time.sleep(50)", env={**env, "TMPDIR": str(tmp_path / "tmp")}) as watcher:
        watcher.stdout.readline()
        assert list((tmp_path / "tmp").glob("ocrlab-watch-*/heartbeat/*"))
        watcher.kill()
        end = time.monotonic() + 20
        while list((tmp_path / "tmp").iterdir()) and time.monotonic() < end:
            time.sleep(0.05)
    assert list((tmp_path / "tmp").iterdir()) == []


LOADER = """
import time
from torch.utils.data import DataLoader, Dataset

class Pages(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        time.sleep(1000 if index == 3 else 0)
        return index

if __name__ == "__main__":
    for batch in DataLoader(Pages(), num_workers=1):
        print(int(batch), flush=True)
"""


def test_what_stood_still_is_looked_at_before_it_is_stopped(started, tmp_path, left):
    """Afterwards there are no stacks any more, and the verdict would know the signal only."""
    (tmp_path / "slow.py").write_text(LOADER)
    with started([sys.executable, "slow.py"], stderr=subprocess.PIPE) as watcher:
        while watcher.stdout.readline() != b"2\n":
            pass
        time.sleep(6.5)
        watcher.terminate()
        err = watcher.communicate(timeout=30)[1].decode()
    assert watcher.returncode == 143
    assert re.search(r"asked to end after [5-9] s without progress", err)
    verdict = json.loads((tmp_path / "out/incident/verdict.json").read_text())
    assert verdict["causes"][0]["id"] == "loader.hang_sample"
    assert "Pages.__getitem__" in (tmp_path / "out/incident/stacks.txt").read_text()
    assert (tmp_path / "out/.FAILURE").exists()


@pytest.mark.slow
def test_a_signal_after_a_short_silence_is_the_cause_and_the_stacks_are_there(started, tmp_path, left):
    code = "import time\nprint('ready', flush=True)\ntime.sleep(1000)"
    with started(code, stderr=subprocess.PIPE) as watcher:
        watcher.stdout.readline()
        time.sleep(6)
        watcher.terminate()
        err = watcher.communicate(timeout=30)[1].decode()
    verdict = json.loads((tmp_path / "out/incident/verdict.json").read_text())
    assert (verdict["status"], verdict["signal"], verdict["causes"][0]["id"]) == ("killed", "SIGTERM", "ext.signal")
    assert "MainThread" in (tmp_path / "out/incident/stacks.txt").read_text()
    assert "without progress" in err


def test_what_a_program_survived_is_not_what_ended_it(watched):
    """A page that was left out, correctly, and later a signal that no watcher has passed on."""
    code = "import os, sys\nfor n in range(3): print('Page left out: [Errno 2] No such file or directory: p.jpg')\n"
    done = watched(code + "print('epoch 1 loss 0.5', flush=True); os.kill(os.getpid(), 15)")
    assert done.verdict["causes"][0]["id"] == "ext.signal"
