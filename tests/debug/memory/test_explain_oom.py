"""Whole answers: from logs, from run folders, for each of the diseases."""

import json
from pathlib import Path
from typing import Any

import pytest

from ocrlab.config import schema as configs
from ocrlab.config.schema import Config
from ocrlab.debug.flight_record import ring_format, ring_writer
from ocrlab.debug.memory.explain_oom import OomAnswer, explain_oom
from ocrlab.errors import DataError
from ocrlab.records import Verdict, to_json

GIB, MIB = 1 << 30, 1 << 20
FRAME = 'Traceback (most recent call last):\n  File "train.py", line 42, in step\n    y = model(x)\n'
CUDA = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {request}. GPU 0 has a total capacity of 23.69 GiB "
    "of which {free} is free. {others}Including non-PyTorch memory, this process has {process} memory in use. Of the "
    "allocated memory {used} is allocated by PyTorch, and {idle} is reserved by PyTorch but unallocated.\n"
)
FULL = {"request": "1.00 GiB", "free": "300.00 MiB", "others": "", "process": "23.30 GiB", "used": "22.60 GiB"}
FULL |= {"idle": "200.00 MiB"}
OTHER = {**FULL, "others": "Process 4011 has 18.00 GiB memory in use. ", "process": "5.30 GiB", "used": "4.60 GiB"}
TORN = {**FULL, "used": "14.00 GiB", "idle": "8.80 GiB"}
LIBRARIES = {**FULL, "used": "14.00 GiB"}


def answer(tmp_path: Path, text: str) -> OomAnswer:
    log = tmp_path / "train.log"
    log.write_text(text)
    answer = explain_oom(str(log))
    json.dumps(answer.record, allow_nan=False)
    assert [check.step for check in answer.checks] == [1, 2, 3, 4, 5, 6, 7]
    assert len(answer.rows) == 7
    return answer


def judged(answer: OomAnswer) -> str:
    return " ".join(check.judgement for check in answer.checks)


PINNED = 'RuntimeError: CUDA error: out of memory\n  File "x.py", line 3, in _pin_memory_loop\n'
REFUSED = "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 21474836480 bytes.\n"
ARRAY = "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 9.00 TiB for an array with shape (3000000, 3)\n"
GROUP = "Memory cgroup out of memory: Killed process 629 (python) total-vm:14kB\n"
MACHINE = "Out of memory: Killed process 629 (python) total-vm:14kB\n"
SHM = "OSError: [Errno 28] No space left on device: '/dev/shm/torch_1_2_3'\n"
CASES: list[tuple[str, str, str, str]] = [
    (FRAME + CUDA.format(**FULL), "capacity", "fail ok ok skip ok ok", "memory fit"),
    (FRAME + CUDA.format(**OTHER), "another process", "fail fail ok", "process 4011"),
    (FRAME + CUDA.format(**TORN), "fragmentation", "fail ok fail", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
    (FRAME + CUDA.format(**LIBRARIES), "outside the cache", "fail ok ok skip ok fail", "CUBLAS_WORKSPACE_CONFIG"),
    (FRAME + CUDA.format(**{**FULL, "request": "130674.91 GiB"}), "absurd size", "fail", "train.py:42"),
    (PINNED, "pinned memory", "", "pin_memory=False"),
    (GROUP, "control group", "", "Fewer workers"),
    (MACHINE, "killed by the host", "", "Fewer workers"),
    (SHM, "shared memory", "", "--shm-size"),
    (REFUSED, "refused by the host", "fail", "Fewer workers"),
    (ARRAY, "absurd size", "fail", "Correct the shape"),
]


@pytest.mark.parametrize(("log", "kind", "marks", "says"), CASES)
def test_a_log_alone(tmp_path: Path, log: str, kind: str, marks: str, says: str) -> None:
    oom = answer(tmp_path, log)
    assert oom.kind.kind == kind
    assert judged(oom).startswith(marks)
    assert says in oom.sentence
    assert oom.sentence.startswith("It ran out of memory")


def test_another_failure_is_reported_as_what_it_is(tmp_path: Path) -> None:
    oom = answer(tmp_path, FRAME + "RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x3 and 5x2)\n")
    assert oom.kind.kind == ""
    assert "user.shape" in oom.sentence
    assert not oom.record["ran_out"]
    assert "There is no sign" in answer(tmp_path, "step 1\nstep 2\n").sentence


def test_a_log_whose_memory_climbs_is_a_leak(tmp_path: Path) -> None:
    lines = "\n".join(f"step {n} memory: {4000 + 180 * n}MB" for n in range(100))
    oom = answer(tmp_path, f"{lines}\n{FRAME}{CUDA.format(**FULL)}")
    assert (oom.kind.kind, oom.kind.cause) == ("leak", "gpumem.leak")
    assert oom.checks[3].judgement == "fail"
    flat = "\n".join(f"step {n} memory: {22000 + n % 3}MB" for n in range(100))
    assert answer(tmp_path, f"{flat}\n{FRAME}{CUDA.format(**FULL)}").kind.kind == "capacity"


def test_the_line_of_a_leak_watch_is_reported(tmp_path: Path) -> None:
    line = "4.00 MiB a step are kept by list `history` at train.py:17: history.append(loss). Keep the number: .item()."
    oom = answer(tmp_path, f"{line}\n{FRAME}{CUDA.format(**FULL)}")
    assert oom.kind.kind == "leak"
    assert "train.py:17" in oom.sentence
    assert ".item()" in oom.remedy.do


def test_validation_is_read_from_the_traceback(tmp_path: Path) -> None:
    frame = 'Traceback (most recent call last):\n  File "train.py", line 9, in validation_step\n    y = self(x)\n'
    oom = answer(tmp_path, frame + CUDA.format(**FULL))
    assert oom.checks[4].judgement == "fail"
    assert "train.log:2" in oom.checks[4].observed


def run_folder(tmp_path: Path, memory: list[int], facts: dict[str, Any], log: str, **settings: Any) -> Path:
    """Return the folder of a run that was watched and recorded, and failed."""
    run = tmp_path / "run"
    (run / "flight").mkdir(parents=True)
    (run / "incident").mkdir()
    writer, _ = ring_writer.create(run / "flight")
    for step, size in enumerate(memory):
        writer.begin(ring_format.Step(step, step, samples=[f"page-{step}"], memory={"cuda0.allocated": size}))
    writer.close()
    (run / "config.yaml").write_text(configs.dump(Config(data="receipts", **settings)))
    (run / "incident" / "log_tail.txt").write_text(log)
    (run / "incident" / "facts.json").write_text(json.dumps({"schema": 1, **facts}))
    (run / "incident" / "verdict.json").write_text(json.dumps(to_json(Verdict(status="failed", exit_code=1))))
    return run


def test_a_run_folder_proposes_settings_for_the_same_effective_batch(tmp_path: Path) -> None:
    run = run_folder(tmp_path, [22 * GIB] * 20, {}, FRAME + CUDA.format(**FULL), batch_size=8)
    oom = explain_oom(str(run))
    assert oom.kind.kind == "capacity"
    assert oom.remedy.settings == ("batch_size=4", "trainer.accumulate_grad_batches=2")
    assert "batch_size=4 trainer.accumulate_grad_batches=2" in oom.sentence
    assert "page-19" in oom.checks[4].observed
    assert oom.checks[3].judgement == "ok"


def test_a_flight_record_that_climbs_is_a_leak(tmp_path: Path) -> None:
    run = run_folder(tmp_path, [(2 + step) * GIB for step in range(20)], {}, FRAME + CUDA.format(**FULL))
    oom = explain_oom(str(run))
    assert oom.kind.kind == "leak"
    assert "ring-0-0.bin" in oom.checks[3].observed


def test_facts_of_the_watcher_fill_the_answers(tmp_path: Path) -> None:
    card = {"free": GIB, "processes": [{"pid": 7, "name": "old", "bytes": 3 * GIB, "ours": False}]}
    facts: dict[str, Any] = {"gpus": {"cards": [card, {"free": 80 * GIB, "processes": []}]}}
    run = run_folder(tmp_path, [], facts, FRAME + CUDA.format(**OTHER))
    oom = explain_oom(str(run))
    assert oom.remedy.environment == {"CUDA_VISIBLE_DEVICES": "1"}
    facts = {"oom_kills": 1, "memory": {"group": {"limit": 64 * MIB}}, "memory_peak_bytes": 63 * MIB}
    (run / "incident" / "facts.json").write_text(json.dumps({"schema": 1, **facts}))
    (run / "incident" / "log_tail.txt").write_text("Killed\n")
    (run / "config.yaml").write_text("runtime: {workers: 4}\nschema: 1\n")
    oom = explain_oom(str(run))
    assert oom.kind.kind == "control group"
    assert judged(oom).startswith("fail skip skip")
    assert oom.checks[5].judgement == "fail"


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),global_oom,task_memcg=/user.slice,task=python,pid=7,uid=0\n"
         "Out of memory: Killed process 7 (python) total-vm:9kB, anon-rss:8kB", "killed by the host"),
        ("oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),oom_memcg=/pod,task_memcg=/pod/a,task=python,pid=7,uid=0\n"
         "Memory cgroup out of memory: Killed process 7 (python) total-vm:9kB, anon-rss:8kB", "control group"),
        ('earlyoom[401]: sending SIGTERM to process 7 uid 1000 "python": badness 951, VmRSS 811 MiB',
         "killed by the host"),
        ("systemd-oomd[812]: Killed /user.slice/a.scope due to memory pressure for /user.slice being 68.21% > 50.00%",
         "killed by the host"),
    ],
)  # fmt: skip
def test_who_killed_is_read_from_the_kernel_s_own_lines(tmp_path: Path, line: str, kind: str) -> None:
    (tmp_path / "log.txt").write_text(line + "\n")
    assert explain_oom(str(tmp_path / "log.txt")).kind.kind == kind


def test_nothing_to_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError):
        explain_oom(str(tmp_path / "nowhere"))
