"""Silence: hangs that are ended, suspicions that are taken back, limits, and folders that cannot be written."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest

from ocrlab import run_folder
from ocrlab.debug.watch.lifecycle import Options
from ocrlab.debug.watch.supervisor import watch
from ocrlab.hardware.processes import pyspy

SPIN = "print('begin')\ndef turn():\n    while True: pass\nturn()"
LOCK = "import threading\nprint('begin')\nlock = threading.Lock()\nlock.acquire(); lock.acquire()"


@pytest.mark.parametrize("code", [SPIN, LOCK], ids=["spin", "lock"])
def test_a_hang_is_ended_with_its_stacks(code, watched):
    done = watched(code, "--silence", "1.5", "--on-hang", "kill")
    assert (done.status, done.sentinel, done.verdict["status"]) == (124, ".FAILURE", "hung")
    stacks = (done.folder / "incident" / "stacks.txt").read_text()
    assert "main" in stacks and "Process " in stacks
    assert "no progress for" in done.err


def test_a_suspicion_is_taken_back_when_it_moves(started, tmp_path):
    os.mkfifo(tmp_path / "gate")
    code = "print('begin', flush=True)\nopen('gate').read()\nprint('end')"
    with started(code, "--silence", "1", stderr=subprocess.PIPE, text=True) as watcher:
        assert "the program continues" in watcher.stderr.readline()
        (tmp_path / "gate").write_text("open")  # it continues once its silence was reported, however long that took
        out, errors = watcher.communicate(timeout=60)
    assert (watcher.returncode, out) == (0, "begin\nend\n")
    assert [file.name for file in (tmp_path / "out").glob(".[FS]*")] == [".SUCCESS"]
    assert "moves again (output)" in errors
    assert not (tmp_path / "out" / "incident").exists()
    assert "the report of its silence is withdrawn" in errors


TALKS = "import signal, sys\nsignal.signal(15, lambda *_: print('Received 15') or sys.exit(1))\n" + LOCK
COUNTS = "n = 0\nwhile True: n += 1"


@pytest.mark.skipif(pyspy.program() is None, reason="py-spy is not installed")
@pytest.mark.parametrize(
    ("code", "number", "status", "sure"),
    [(TALKS, signal.SIGTERM, 1, True), (LOCK, signal.SIGTERM, 143, True), (COUNTS, signal.SIGINT, 130, False)],
    ids=["last words are not progress", "stacks of the hang", "little is sure"],
)
def test_who_ends_what_hangs_leaves_the_report_of_the_hang(code, number, status, sure, started, tmp_path):
    with started(code, "--silence", "1", stderr=subprocess.PIPE, text=True) as watcher:
        assert "the program continues" in watcher.stderr.readline()
        watcher.send_signal(number)
        errors = watcher.stderr.read()
        assert watcher.wait(20) == status
    assert "moves again" not in errors and "s without progress" in errors
    assert "Process " in (tmp_path / "out" / "incident" / "stacks.txt").read_text()
    verdict = json.loads((tmp_path / "out" / "incident" / "verdict.json").read_text())
    assert (verdict["status"], verdict["causes"][0]["id"]) == ("suspected", "hang.deadlock")
    assert (verdict["causes"][0]["confidence"] >= 0.5) == sure
    assert json.loads((tmp_path / "out" / ".FAILURE").read_text())["verdict"] == "hang.deadlock"


def test_the_limit_ends_it_with_its_stacks(watched):
    code = "import time\nwhile True: print('x'); time.sleep(0.1)"
    done = watched(code, "--timeout", "1")
    assert (done.status, done.verdict["status"]) == (124, "hung")
    assert "limit of 1 s" in done.err
    assert (done.folder / "incident" / "stacks.txt").is_file()


def test_what_ignores_sigterm_is_killed(watched):
    code = "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('begin')\nwhile True: time.sleep(1)"
    assert watched(code, "--timeout", "1").status == 124


SLOW = """
import math, time
def step(i):
    s = 0.0
    for j in range(60000): s += math.sin(j)
    return s
def epoch():
    for i in range(100000):
        step(i)
        if time.monotonic() > end: return
end = time.monotonic() + 3
epoch()
"""
SAME = "print('begin', flush=True)\ndef turn(n):\n    while n != 1: n = n\nturn(5)"


@pytest.mark.skipif(pyspy.program() is None, reason="py-spy is not installed")
def test_a_slow_epoch_in_python_is_no_hang(watched):
    done = watched(SLOW, "--silence", "1.5", "--on-hang", "kill")
    assert (done.status, done.err) == (0, "")


@pytest.mark.skipif(pyspy.program() is None, reason="py-spy is not installed")
@pytest.mark.parametrize(("code", "line"), [
    (SAME, 3),
    pytest.param(
        "import re\nprint('begin')\nre.match('(a+)+$', 'a' * 60 + 'b')", 3, marks=pytest.mark.slow
    ),  # in C
], ids=["nothing changes", "regular expression"])  # fmt: skip
def test_a_program_that_uses_the_cpu_is_busy_and_a_suspicion_at_most(code, line, watched, tmp_path):
    (tmp_path / "loop.py").write_text(code)
    done = watched([sys.executable, "-u", "loop.py"], "--silence", "1.5", "--timeout", "4")
    first = done.err.partition("time limit of")[0]
    assert re.search(rf"cause    busy at \S*loop\.py:{line} for \d+ s", first), done.err
    assert "the program continues" in first
    (best, *others) = done.verdict["causes"]
    assert (best["id"], best["confidence"] <= 0.45, others) == ("hang.deadlock", True, [])
    assert "deadlock or" not in (done.folder / "incident" / "verdict.md").read_text()


TWO_LOCKS = """
import threading, time
one, two = threading.Lock(), threading.Lock()
def other():
    with two:
        with one: pass
one.acquire(); two.acquire()
threading.Thread(target=other, daemon=True).start()
two.release(); time.sleep(0.5)
with two: pass
"""


@pytest.mark.skipif(pyspy.program() is None, reason="py-spy is not installed")
@pytest.mark.parametrize(
    ("code", "cause"),
    [(TWO_LOCKS, "hang.deadlock"), ("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", "hang.stopped")],
    ids=["deadlock", "stopped"],
)
def test_a_deadlock_and_a_stopped_program_keep_their_names(code, cause, watched):
    done = watched(code, "--silence", "2", "--on-hang", "kill")
    best = done.verdict["causes"][0]
    assert (best["id"], best["confidence"] >= 0.6, "busy" in done.err) == (cause, True, False)


def test_secrets_of_the_command_line_are_in_no_text_of_the_incident(watched):
    word = "abcdef0123456789abcdef0123456789abcdef01"
    code = "import sys, time; print(sys.argv); time.sleep(50)"
    command = ["env", f"WANDB_API_KEY={word}", sys.executable, "-c", code, "--api-key", word, f"--password={word}"]
    done = watched(command, "--silence", "1", "--on-hang", "kill")
    texts = {file.name: file.read_text() for file in (done.folder / "incident").iterdir()}
    assert {"stacks.txt", "facts.json", "verdict.json", "verdict.md"} <= set(texts)
    assert [name for name, text in texts.items() if word in text and name != "log_tail.txt"] == []
    assert len(json.loads(texts["facts.json"])["cpu_flags"]) < 40


@pytest.mark.parametrize("on_hang", [None, "report"])
def test_a_heartbeat_that_stops_is_a_hang_for_certain(on_hang, env, tmp_path, monkeypatch, left):
    code = "import time\nfrom ocrlab.run_folder import heartbeat\n"
    code += "for step in range(3): heartbeat.beat(step=step, phase='train'); time.sleep(0.2)\ntime.sleep(3)"
    monkeypatch.chdir(tmp_path)
    ended = watch(
        [sys.executable, "-c", code], Options(run_dir=tmp_path / "out", silence=1.0, on_hang=on_hang),
        output=lambda *_: None, env=env,
    )  # fmt: skip
    assert (ended.status, ended.exit_status) == (("hung", 124) if on_hang is None else ("success", 0))
    if on_hang is None:
        assert ended.verdict.status == "hung"


def test_a_recorded_training_that_ends_itself_in_the_middle_is_no_success(watched, tmp_path):
    code = f"""
from pathlib import Path
from ocrlab.debug.flight_record import training_findings as learned
from ocrlab.run_folder import watcher_link as handover
folder = Path({str(tmp_path / "mine")!r})
(folder / "flight").mkdir(parents=True)
handover.report_record(folder)
learned.write(folder / "flight", 0, 1, ["the training did not end: sys.exit(0) at a.py:3"], {{}}, cut=CUT)
"""
    done = watched(code.replace("CUT", "True"))
    assert (done.status, done.sentinel) == (0, ".FAILURE"), "the exit status is the program's own"
    assert "exit status 0, and yet the training did not end: sys.exit(0) at a.py:3" in done.err
    shutil.rmtree(tmp_path / "mine")
    done = watched(code.replace("CUT", "False"))
    assert (done.status, done.sentinel, done.err) == (0, ".SUCCESS", "")


@pytest.mark.parametrize(
    ("ending", "how"), [("os.kill(os.getpid(), 11)", "SIGSEGV"), ("raise KeyError('width')", "KeyError")]
)
def test_a_run_folder_that_a_script_made_itself_has_the_cause(ending, how, watched, tmp_path):
    runs = tmp_path / "runs"
    code = f"""
import os
from ocrlab import run_folder as flight
from ocrlab.run_folder import watcher_link as handover
with flight.run({str(runs)!r}, "mine") as folder:
    handover.report_record(folder.path)
    {ending}
"""
    done = watched(code)
    ((own, record),) = run_folder.list_runs(runs)
    assert (record.status, own != done.folder) == ("failure", True)
    assert record.verdict == (done.verdict["causes"] or [{"id": "unknown"}])[0]["id"]
    assert how in json.dumps(record.error)
    assert json.loads((own / "incident" / "verdict.json").read_text()) == done.verdict
    assert (own / "incident" / "verdict.md").read_bytes() == (done.folder / "incident" / "verdict.md").read_bytes()


def test_where_the_record_of_a_killed_program_ends_is_in_its_verdict(watched, tmp_path):
    code = f"""
import os, signal
from ocrlab import run_folder as flight
from ocrlab.run_folder import watcher_link as handover; from ocrlab.debug.flight_record import ring_writer as ring
with flight.run({str(tmp_path / "runs")!r}, "mine") as folder:
    handover.report_record(folder.path)
    writer, _ = ring.create(folder.path / "flight", slots=4)
    writer.begin(ring.Step(22, 22, samples=["page_003.png"]))
    writer.phase("backward")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = watched(code)
    assert done.verdict["record"] == "the record ends at step 22, backward; sample page_003.png"
    assert "The record ends at step 22, back" in (done.folder / "incident" / "verdict.md").read_text()


def test_a_run_folder_with_a_cause_of_its_own_is_left_alone(watched, tmp_path):
    code = f"""
from ocrlab import run_folder as flight
from ocrlab.run_folder import watcher_link as handover
folder = flight.create({str(tmp_path / "runs")!r}, "mine")
handover.report_record(folder.path)
folder.succeed({{}})
raise SystemExit(3)
"""
    assert watched(code).status == 3
    ((own, record),) = run_folder.list_runs(tmp_path / "runs")
    assert record.status == "success" and not (own / "incident").exists()


def test_messages_stand_in_lines_of_their_own_after_a_progress_bar(watched):
    done = watched("import sys; sys.stderr.write('\\r 42%|##   | 5/12'); sys.stderr.flush(); sys.exit(3)")
    assert done.err.startswith("\r 42%|##   | 5/12\nocrlab watch: ")


def test_what_a_folder_holds_stays(watched, tmp_path):
    (tmp_path / "out" / "incident").mkdir(parents=True)
    (tmp_path / "out" / "notes.txt").write_text("mine")
    (tmp_path / "out" / "incident" / "verdict.json").write_text("{}")
    done = watched("raise SystemExit(3)")
    assert (done.folder / "notes.txt").read_text() == "mine"
    assert (done.folder / "incident-1" / "verdict.json").read_text() == "{}"
    assert done.verdict["exit_code"] == 3
    assert watched("pass").sentinel == ".SUCCESS", "the same folder again, for another try"
    assert not (tmp_path / "out" / "incident").exists(), "an earlier one says nothing of a later run"
    assert json.loads((tmp_path / "out" / "incident-2" / "verdict.json").read_text())["exit_code"] == 3


def test_a_folder_that_cannot_be_created_does_not_stop_the_program(watched, tmp_path):
    (tmp_path / "out").write_text("a file")
    done = watched("print('ran'); raise SystemExit(3)")
    assert (done.status, done.out) == (3, b"ran\n")
    assert "cannot be opened" in done.err and "verdict.md" in done.err


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_full_disk_does_not_hide_the_failure(env, tmp_path):
    script = 'mount -t tmpfs -o size=64k none out && exec "$@"'
    program = "d = open('out/fill', 'wb')\ntry:\n while True: d.write(bytes(1000)); d.flush()\n"
    program += "except OSError: raise SystemExit(3)"
    (tmp_path / "out").mkdir()
    words = [sys.executable, "-m", "ocrlab", "watch", "--run-dir", "out", "--", sys.executable, "-c", program]
    done = subprocess.run(["unshare", "-m", "bash", "-c", script, "bash", *words], env=env, cwd=tmp_path,
                          capture_output=True, text=True, timeout=60, check=False)  # fmt: skip
    if done.returncode in (1, 32) and "mount" in done.stderr:
        pytest.skip("this machine lets nobody mount")
    assert done.returncode == 3
    assert "the verdict is elsewhere" in done.stderr
    assert "exit status 3" in done.stderr


def test_a_classifier_that_raises_does_not_hide_the_failure(tmp_path, monkeypatch):
    from ocrlab.debug.diagnosis import classify

    def broken(incident):
        raise ZeroDivisionError("in the rules")

    monkeypatch.setattr(classify, "classify", broken)
    ended = watch(["sh", "-c", "echo no; exit 9"], Options(run_dir=tmp_path / "out"), output=lambda *_: None)
    assert (ended.exit_code, ended.verdict.causes) == (9, [])
    assert "ZeroDivisionError: in the rules" in ended.verdict.missing[0]
    log = (tmp_path / "out" / "flight" / "ocrlab-errors.log").read_text()
    assert "watch: the diagnosis" in log and "in broken" in log
    assert json.loads((tmp_path / "out" / "incident" / "verdict.json").read_text())["missing"] == ended.verdict.missing


@pytest.mark.parametrize(("code", "status"), [("", 0), ("; sys.exit(3)", 3)])
def test_output_that_cannot_be_written_is_reported_and_is_no_success(code, status, started):
    with open("/dev/full", "wb") as full:
        watcher = started("import sys; print('x' * 9999, flush=True)" + code, stdout=full, stderr=subprocess.PIPE)
        errors = watcher.communicate(timeout=60)[1].decode()
    assert watcher.returncode == (status or 1)
    assert "stdout of the watched program cannot be written: [Errno 28]" in errors


STOPPED_EARLY = """
import os, sys
from pathlib import Path
from ocrlab import run_folder as flight
from ocrlab.debug.watch.supervisor import Options, watch
code = "import signal, sys; signal.signal(15, lambda *_: sys.exit(143)); "
code += sys.argv[1] + "print('ready', flush=True); signal.pause()"
options = Options(own_folder=True, runs=Path("there").absolute())
ended = watch([sys.executable, "-c", code], options)
print(ended.folder and ended.folder.name, ended.exit_status, ended.status)
"""


MAKES_A_FOLDER = """from ocrlab import run_folder
from ocrlab.run_folder import watcher_link
watcher_link.report_run(run_folder.create('there', 'x').path)
"""


@pytest.mark.parametrize(("makes", "text"), [
    ("", "None 143 failed"),
    (MAKES_A_FOLDER, "-x 143 failed"),
])  # fmt: skip
def test_who_stops_a_training_before_it_has_a_folder_gets_none(makes, text, env, tmp_path, left):
    with subprocess.Popen([sys.executable, "-c", STOPPED_EARLY, makes], env=env, cwd=tmp_path, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True) as watcher:  # fmt: skip
        assert watcher.stdout.readline() == "ready\n"
        watcher.terminate()
        out, err = watcher.communicate(timeout=60)
    assert out.strip().endswith(text), err
    assert [path.name for path in tmp_path.iterdir()] == (["there"] if makes else []), "nothing in ./runs either"
    if not makes:
        assert "before it had a run folder" in err


def test_a_training_that_dies_before_it_says_where_is_written_down_where_its_runs_go(tmp_path):
    ended = watch(["sh", "-c", "kill -9 $$"], Options(own_folder=True, runs=tmp_path / "there"), output=lambda *_: None)
    assert (ended.folder.parent, ended.exit_status) == (tmp_path / "there", 137)
    assert (ended.folder / "incident" / "verdict.md").is_file()


def test_where_no_disk_has_space_the_exit_status_and_the_cause_are_still_reported(env, tmp_path):
    program = "sh -c 'head -c 9000 /dev/zero >&2; exit 7'"
    words = f"ulimit -f 1; exec {sys.executable} -m ocrlab watch --run-dir out -- {program}"
    done = subprocess.run(["bash", "-c", words], env=env, cwd=tmp_path, capture_output=True, text=True)
    errors = done.stderr.lstrip("\0")
    assert done.returncode == 7, errors
    assert "Traceback" not in errors and "verdict.md" not in errors
    assert "ocrlab watch: neither " in errors and "sh ended with exit status 7" in errors


BEATS = """
import os, signal, time
from ocrlab.run_folder import watcher_link as handover, heartbeat
signal.signal(signal.SIGTERM, lambda number, frame: {then})
heartbeat.beat(step=1, phase='train')
def stuck():
    end = time.monotonic() + 3
    while time.monotonic() < end: time.sleep(0.1)
print('ready', flush=True)
stuck()
"""


@pytest.mark.parametrize(
    ("then", "status", "hangs"),
    [("None", 143, True), ("heartbeat.beat(phase=heartbeat.STOPS)", 0, False)],
    ids=["hangs", "saves"],
)
def test_a_training_that_was_asked_to_stop_and_does_not_move_is_ended(then, status, hangs, env, tmp_path):
    ours = "import sys; from pathlib import Path; from ocrlab.debug.watch import lifecycle, supervisor as supervise\n"
    ours += "lifecycle.STOPS = 1.0\n"
    ours += f"code = {BEATS.format(then=then)!r}\n"
    ours += "options = supervise.Options(own_folder=True, runs=Path('runs'))\n"
    ours += "sys.exit(supervise.watch([sys.executable, '-c', code], options).exit_status)"
    with subprocess.Popen([sys.executable, "-c", ours], env=env, cwd=tmp_path, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True) as watcher:  # fmt: skip
        assert watcher.stdout.readline() == "ready\n"
        watcher.terminate()
        errors = watcher.communicate(timeout=60)[1]
    assert watcher.returncode == status, errors
    assert ("since SIGTERM; terminating" in errors) == hangs
    if hangs:
        (verdict,) = tmp_path.glob("runs/*/incident/verdict.json")
        assert json.loads(verdict.read_text())["status"] == "hung"
        assert "stuck" in (verdict.parent / "stacks.txt").read_text()
