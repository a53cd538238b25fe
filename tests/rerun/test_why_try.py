"""The remedy tried in watched children, under the limits of the run that failed: address space, control groups."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ocrlab.diagnose.oom_remedy import Remedy
from ocrlab.errors import ConfigError
from ocrlab.rerun import why_limit, why_try
from ocrlab.rerun.why import Why, tried, why
from ocrlab.watch.supervise import Options, watch

MIB = 1 << 20
PROGRAM = """
import resource, sys, time
size = int(sys.argv[sys.argv.index("--batch-size") + 1])
if "--limit" in sys.argv:
    used = int(open("/proc/self/statm").read().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (used + (100 << 20),) * 2)
for step in range(4):
    batch = None
    batch = [bytes(b"x" * (16 << 20)) for _ in range(size)]
    print("step", step, flush=True)
    time.sleep(0.2)
"""
quiet = {"output": lambda _stream, _data: None}


def silent(_text: str) -> None:
    pass


def failed(tmp_path: Path, *words: str) -> tuple[Why, list[str]]:
    """Return the answer about a watched run of the program that failed, and its command."""
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), *words]
    watch(command, Options(tmp_path / "run"), output=quiet["output"])
    return why(str(tmp_path / "run")), command


def test_the_batch_is_halved_until_it_fits(tmp_path: Path) -> None:
    answer, command = failed(tmp_path, "--limit", "--batch-size", "8")
    assert answer.found.kind == "refused by the host"
    done = tried(answer, command, 30, silent)
    assert done.tried is not None
    assert done.tried["works"] is True
    assert done.tried["change"] == "--batch-size 4"
    first, second = done.tried["runs"]
    assert (first["status"], first["cause"]) == ("failed", "host.alloc_fail")
    assert second["status"] == "success"
    assert re.search(r"as it was it fails again .*; with --batch-size 4 it ends well", done.sentence)


def test_what_was_not_enough_is_told_with_what_was(tmp_path: Path) -> None:
    answer, command = failed(tmp_path, "--limit", "--batch-size", "16")
    done = tried(answer, command, 30, silent)
    assert done.tried is not None
    assert done.tried["change"] == "--batch-size 4"
    assert re.search(r" s, with --batch-size 8 too; with --batch-size 4 it ends well\.$", done.sentence)


def test_what_does_not_fail_again_shows_nothing(tmp_path: Path) -> None:
    answer, command = failed(tmp_path, "--limit", "--batch-size", "8")
    (tmp_path / "train.py").write_text("print('step 0')")
    done = tried(answer, command, 30, silent)
    assert done.tried is not None
    assert done.tried["works"] is None
    assert "nothing shows" in done.sentence


def test_a_limit_of_the_control_group_is_made_again(tmp_path: Path) -> None:
    limits = why_limit.Limits(group=110 * MIB)
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    words = [sys.executable, str(program), "--batch-size", "8"]
    with why_limit.under(limits, words) as (command, problem):
        if problem:
            pytest.skip(problem)
        ended = watch(command, Options(tmp_path / "run"), output=quiet["output"])
    assert ended.signal == "SIGKILL"
    answer = why(str(tmp_path / "run"))
    assert answer.found.kind == "control group"
    assert answer.known.group_limit is not None
    assert abs(answer.known.group_limit - 110 * MIB) < MIB
    done = tried(answer, words, 30, silent)
    assert done.tried is not None
    assert (done.tried["works"], done.tried["change"]) == (True, "--batch-size 4")
    assert done.tried["runs"][0]["cause"] == "host.oom_kill"


def test_a_remedy_in_the_environment_is_tried_in_it(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.69 "
        "GiB of which 300.00 MiB is free. Including non-PyTorch memory, this process has 23.30 GiB memory in use. Of "
        "the allocated memory 14.00 GiB is allocated by PyTorch, and 8.80 GiB is reserved by PyTorch but unallocated.\n"
    )
    code = "import os; assert 'True' in os.environ.get('PYTORCH_CUDA_ALLOC_CONF', ''), open({log!r}).read()"
    done = tried(why(str(log)), [sys.executable, "-c", code.format(log=str(log))], 30, silent)
    assert done.tried is not None
    assert done.tried["works"] is True
    assert done.tried["change"] == "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    assert done.tried["runs"][0]["cause"] == "gpumem.fragmentation"


def test_without_a_program_it_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("MemoryError\n")
    with pytest.raises(ConfigError, match="what to run"):
        tried(why(str(log)), [], 30, silent)
    with pytest.raises(ConfigError, match="no time"):
        tried(why(str(log)), ["true"], 0, silent)


@pytest.mark.parametrize(
    ("words", "pattern", "first"),
    [
        (["t.py", "--batch-size=8"], why_try.BATCH, "--batch-size=4"),
        (["t.py", "data.batch_size=8"], why_try.BATCH, "data.batch_size=4"),
        (["t.py", "-b", "8"], why_try.BATCH, "-b 4"),
        (["t.py", "--num_workers", "3"], why_try.WORKERS, "--num_workers 1"),
        (["t.py", "-j4"], why_try.WORKERS, "-j2"),
    ],
)
def test_numbers_in_the_words_of_a_program(words: list[str], pattern: re.Pattern[str], first: str) -> None:
    assert next(change for _, change in why_try._halved(words, pattern)) == first


def test_words_without_a_number_stay() -> None:
    assert list(why_try._halved(["t.py", "--batch-size", "auto", "--web", "8"], why_try.BATCH)) == []
    assert list(why_try._halved(["t.py", "--batch-size", "1"], why_try.BATCH)) == []


@pytest.mark.parametrize(("step", "steps"), [(None, 20), (0, 20), (31, 33), (5000, 200)])
def test_a_training_is_run_past_the_step_that_failed_and_long_enough_for_its_heap(
    tmp_path: Path, step: int | None, steps: int
) -> None:
    words = why_try._training(SimpleNamespace(folder=tmp_path, step=step), tmp_path)  # type: ignore[arg-type]
    assert f"trainer.max_steps={steps}" in words


def test_after_a_remedy_ever_smaller_steps_are_tried() -> None:
    known = SimpleNamespace(config={"batch_size": 2, "trainer.accumulate_grad_batches": 1, "crop": 512})
    tried_ones = list(why_try._rungs(known, Remedy(("runtime.workers=0",))))  # type: ignore[arg-type]
    assert tried_ones[0] == ("runtime.workers=0",)
    assert tried_ones[1] == ("runtime.workers=0", "batch_size=1", "trainer.accumulate_grad_batches=2")
    assert tried_ones[2] == (*tried_ones[1], "crop=352")
    assert len(tried_ones) == why_try.RUNGS
    assert list(why_try._rungs(known, Remedy())) == []  # type: ignore[arg-type]
