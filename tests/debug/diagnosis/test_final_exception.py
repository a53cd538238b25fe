"""The exception that ends a log outranks the noise before it."""

import pytest

from ocrlab.debug.diagnosis.classify import classify
from ocrlab.records import Incident, Verdict

END = """Traceback (most recent call last):
  File "fit.py", line 40, in <module>
    run()
  File "fit.py", line 31, in run
    return scores["hmean"]
           ~~~~~~^^^^^^^^^
KeyError: 'hmean'
"""
NOISE = {
    "socket": "[W socket.cpp:426] [c10d] The client socket has failed to connect to [localhost]:29500 (errno: 99).\n",
    "so": "2025-03-01 09:00:00: W tensorflow/dso_loader.cc:64] Could not load dynamic library 'libcudart.so.11.0'\n",
    "image": "io/image.py:13: UserWarning: Failed to load image Python extension: undefined symbol: _ZN3c10\n",
    "tracker": "wandb: Network error (ConnectTimeout), entering retry loop.\n",
    "shell": "ls: cannot access 'weights': No such file or directory\n",
    "smi": "./go.sh: line 7: nvidia-smi: command not found\n",
    "nvml": "UserWarning: Can't initialize NVML\n  warnings.warn(\"Can't initialize NVML\")\n",
    "skipped": "WARNING skipping 17.png: image file is truncated\nepoch 1 loss 0.4\n",
    "batch": "CUDA out of memory. Tried to allocate 2.00 GiB; retrying with 8\nepoch 1 loss 0.4\nepoch 2 loss 0.3\n",
    "capability": "UserWarning: Tesla K80 with CUDA capability sm_37 is not compatible with this installation.\n",
    "lines": "torch/cuda/__init__.py:287: UserWarning: \nA card with CUDA capability sm_120 is not compatible with the "
    "current PyTorch installation.\nIt supports sm_80 sm_90.\n\n  warnings.warn(\n",
    "resume": 'Traceback (most recent call last):\n  File "fit.py", line 3, in resume\n    load(path)\n'
    "FileNotFoundError: [Errno 2] No such file or directory: 'a.ckpt'\nno checkpoint, starting from scratch\n"
    "epoch 1 loss 0.5\nepoch 2 loss 0.4\n",
}


def judge(log: str, **more: object) -> Verdict:
    return classify(Incident(texts={"log_tail.txt": log}, **more))  # type: ignore[arg-type]


def first(verdict: Verdict) -> str | None:
    return verdict.causes[0].id if verdict.causes else None


@pytest.mark.parametrize("name", NOISE)
def test_noise_before_an_error_of_the_program_is_no_cause(name: str) -> None:
    verdict = judge(NOISE[name] + END)
    assert verdict.causes == []
    assert "program's own error, `KeyError: 'hmean'` in run (fit.py:31)" in verdict.missing[0]


@pytest.mark.parametrize("name", NOISE)
def test_noise_before_a_good_end_is_no_cause(name: str) -> None:
    verdict = judge(f"{NOISE[name]}epoch 9 loss 0.1\nTraining finished.\n")
    assert verdict.causes == []
    assert verdict.missing[0].startswith("no error in this log")


@pytest.mark.parametrize(("before", "cause"), [
    ("RuntimeError: CUDA error: device-side assert triggered\n", "data.index_range"),
    ("ERROR: Unexpected bus error encountered in worker. It might be insufficient shared memory", "host"),
    ("imread_('a.jpg'): can't open/read file: check file path/integrity\n", "io.missing"),
])  # fmt: skip
def test_an_error_that_can_cause_the_last_error_stays_first(before: str, cause: str) -> None:
    assert str(first(judge(f"{before}\n{END}"))).startswith(cause)


def test_the_steps_that_a_dead_workers_batches_allow_are_no_survival() -> None:
    """Seen with torch 2.15: the main process uses up what was prefetched, and then hears of a closed socket."""
    log = "step 5\nERROR: Unexpected segmentation fault encountered in worker.\nstep 6\nstep 7\n"
    log += (
        'Traceback (most recent call last):\n  File "multiprocessing/resource_sharer.py", line 86, in get_connection\n'
    )
    log += "ConnectionResetError: [Errno 104] Connection reset by peer\n"
    verdict = classify(Incident(texts={"log_tail.txt": log}))
    assert verdict.causes[0].id == "loader.worker_crash"


def test_a_worker_that_died_of_a_signal_is_not_survived_by_the_steps_that_come_after() -> None:
    dump = 'Fatal Python error: Illegal instruction\n\nThread 0x00007f01 (most recent call first):\n  File "d.py"\n'
    steps = "".join(f"step {step} loss 0.5\n" for step in range(3))
    lost = (
        'Traceback (most recent call last):\n  File "fit.py", line 4, in train\n  File "resource_sharer.py", line 57, '
        'in detach\n  File "torch/multiprocessing/reductions.py", line 9, in rebuild_storage_fd\nEOFError\n'
    )
    assert first(judge(dump + steps + lost)) == "build.cpu_isa"


def test_a_loss_that_became_nan_counts_after_a_good_end() -> None:
    log = "".join(f"step {step} loss nan\n" for step in range(100, 900, 100))
    assert first(judge(f"{log}Training finished.\n")) == "num.nonfinite"


@pytest.mark.parametrize("log", [
    'Traceback (most recent call last):\n  File "a.py", line 2, in f\n    fail("CUDA out of memory, timeout")\n'
    "    ~~~~^^^^^\nKeyError: 'k'\n",
    "-----\nKeyError                 Traceback (most recent call last)\nCell In[3], line 2\n"
    "      1 check('No space left on device')\n----> 2 g('device-side assert triggered')\n\nKeyError: 'k'\n",
    "_________ test_a _________\n\n    def test_a():\n>       assert f('CUDA out of memory') == 2\n"
    "E       AssertionError: assert 1 == 2\n\ntest_a.py:3: AssertionError\n",
])  # fmt: skip
def test_source_that_a_traceback_shows_never_decides(log: str) -> None:
    verdict = judge(log)
    assert verdict.causes == []
    assert "the program's own error" in verdict.missing[0]


RANKS = """W1121 02:00:00.1 9 torch/distributed/elastic/api.py:900] Sending process 77 closing signal SIGTERM
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
Failures:
[1]:
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 77)
Root Cause (first observed failure):
[0]:
  rank      : 1 (local_rank: 1)
  exitcode  : {} (pid: 78)
"""


def test_the_rank_that_failed_first_decides_not_those_that_torchrun_ended() -> None:
    verdict = judge(END + RANKS.format(1))
    assert verdict.causes == []
    assert "KeyError: 'hmean'" in verdict.missing[0]
    assert first(judge(RANKS.format(-11))) == "native.segv"
    assert first(judge(RANKS.format(-15))) == "ext.signal"


def test_the_file_of_a_step_that_failed_is_missing_because_of_it() -> None:
    verdict = judge(
        'Traceback (most recent call last):\n  File "one.py", line 3, in <module>\n    torch._C._cuda_init()\n'
        "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment\n"
        'Traceback (most recent call last):\n  File "all.py", line 9, in <module>\n    os.listdir(made)\n'
        "FileNotFoundError: [Errno 2] No such file or directory: 'out/made'\n"
    )
    assert verdict.causes[0].id == "driver.state"
    assert "io.missing" not in [cause.id for cause in verdict.causes]


CHAIN = (
    'Traceback (most recent call last):\n  File "fit.py", line 3, in ratio\n    return a / b\n{0}\n\n'
    "During handling of the above exception, another exception occurred:\n\n"
    'Traceback (most recent call last):\n  File "fit.py", line 8, in train\n    os.remove(lock)\n'
    "FileNotFoundError: [Errno 2] No such file or directory: '/tmp/lock'\n"
)


def test_what_a_handler_fails_of_while_it_cleans_up_is_not_why_it_was_entered() -> None:
    verdict = judge(CHAIN.format("ZeroDivisionError: division by zero"))
    assert verdict.causes == []
    assert "own error, `ZeroDivisionError: division by zero` in ratio (fit.py:3)" in verdict.missing[0]
    assert "handler of the first exception" in verdict.ruled_out[0].why


@pytest.mark.parametrize("tried", ["KeyError: 'k'", "ImportError: no orjson", "queue.Empty"])
def test_a_handler_that_tries_another_way_fails_of_its_own_cause(tried: str) -> None:
    assert first(judge(CHAIN.format(tried))) == "io.missing"


def test_an_error_of_the_program_says_more_than_a_guess() -> None:
    noise = "Killed 3 stale processes of the last run; out of memory handler installed\n"
    assert judge(noise + END, status="failed", exit_code=1, facts={"oom_kills": 0}).causes == []


def test_the_original_traceback_of_a_worker_is_no_notebooks() -> None:
    log = (
        'Traceback (most recent call last):\n  File "fit.py", line 9, in <module>\n    for batch in loader:\n'
        "AttributeError: Caught AttributeError in DataLoader worker process 0.\n"
        'Original Traceback (most recent call last):\n  File "fit.py", line 5, in start\n    open(path)\n'
        "AttributeError: no path\n"
    )
    assert "`AttributeError: no path` in start (fit.py:5)" in judge(log).missing[0]


@pytest.mark.parametrize(("after", "own"), [("5/12", True), ("6/12", False)])
def test_a_progress_bar_that_is_closed_after_the_exception_is_no_progress(after: str, own: bool) -> None:
    bar = "\r 42%|████▏     | {} [00:01<00:02,  5.86it/s]"
    log = f"start\n{bar.format('4/12')}{bar.format('5/12')}{END}{bar.format(after)}\n"
    missing = judge(log, status="failed", exit_code=1).missing
    assert any("this is the program's own error, `KeyError: 'hmean'`" in thing for thing in missing) == own


def test_an_image_that_could_not_be_read_is_sure_only_before_an_error_of_having_none() -> None:
    unread = "[ WARN:0@2.1] global loadsave.cpp:248 findDecoder imread_('a.jpg'): can't open/read file: check file path"
    end = 'Traceback (most recent call last):\n  File "fit.py", line 3, in f\n'
    assert (
        judge(f"{unread}\n{end}AttributeError: 'NoneType' object has no attribute 'shape'").causes[0].confidence > 0.8
    )
    assert judge(f"{unread}\n{end}KeyError: 'width'").causes[0].confidence <= 0.7
    assert (
        first(judge(f"{unread}\n{end}RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x4 and 2x1)"))
        == "user.shape"
    )


@pytest.mark.parametrize("end, cause", [
    (
        '  File "/v/site-packages/nbclient/client.py", line 1009, in async_execute_cell\n'
        '    raise DeadKernelError("Kernel died") from None\n'
        "nbclient.exceptions.DeadKernelError: Kernel died\n",
        "notebook.kernel_died",
    ),
    (
        '  File "/v/site-packages/torch/serialization.py", line 808, in __init__\n'
        "    super().__init__(torch._C.PyTorchFileReader(name_or_buffer))\n"
        "OSError: [Errno 22] Invalid argument\n",
        "ckpt.corrupt",
    ),
], ids=["a messenger that ended the program itself", "frames name the reader, source lines do not count"])  # fmt: skip
def test_what_ended_a_program_by_itself_is_no_report_of_something_else(end: str, cause: str) -> None:
    log = f'Traceback (most recent call last):\n  File "fit.py", line 3, in run\n    go()\n{end}'
    assert first(judge(log, status="failed", exit_code=1)) == cause


LEFT_OUT = "ocrlab: Page left out: [Errno 2] No such file or directory: 'data/p3.jpg'\nepoch 1 loss 0.4\n"


@pytest.mark.parametrize("signal", ["SIGTERM", "SIGKILL", "SIGHUP"])
def test_what_ended_a_program_outranks_what_it_survived(signal: str) -> None:
    verdict = judge(LEFT_OUT * 3, status="killed", signal=signal)
    assert first(verdict) in ("ext.signal", "host.oom_kill")
    assert all(cause.confidence < 0.5 for cause in verdict.causes if cause.id.startswith("io."))
    traced = 'Traceback (most recent call last):\n  File "fit.py", line 3, in load\n    open(path)\n'
    ended = judge(traced + LEFT_OUT.partition("\n")[0].rpartition("out: ")[2], status="failed", exit_code=1)
    assert first(ended) != "ext.signal", "an exception at the end is what ended it"
