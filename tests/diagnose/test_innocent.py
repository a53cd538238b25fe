"""Warnings of each start explain nothing where something else ended the program."""

from __future__ import annotations

import pytest

from ocrlab.diagnose.classify import classify
from ocrlab.records import Incident, Verdict

INNOCENT = (
    "Installed CUDA version 12.1 does not match the version torch was compiled with 12.4 but since the APIs are"
    " compatible, accepting this combination",
    "UserWarning: Failed to load image Python extension: 'libjpeg.so.8: cannot open shared object file: No such file'",
    "WARNING: The NVIDIA Driver was not detected.  GPU functionality will not be available.",
    "[W ProcessGroupNCCL.cpp:4561] Warning: using GPU 2 to perform barrier as devices used by this process are"
    " currently unknown.",
    "WARNING[XFORMERS]: xFormers can't load C++/CUDA extensions. xFormers was built for: PyTorch 2.2",
    "/usr/bin/ld: cannot find -laio: No such file or directory",
    "/usr/bin/ld: cannot find -lcufile: No such file or directory",
    "Corrupt JPEG data: 12 extraneous bytes before marker 0xd8",
    "wandb: Network error (ReadTimeout), entering retry loop.",
    "n1:77:91 [2] NCCL INFO NET/IB : No device found.",
    "Could not find the bitsandbytes CUDA binary at PosixPath('/v/libbitsandbytes_cuda125.so')",
    "The installed version of bitsandbytes was compiled without GPU support. 8-bit optimizers are unavailable.",
)
MOVED = "Epoch 2/9 step 40 loss 0.61\nEpoch 2/9 step 60 loss 0.58"
ENDS = (
    ("Segmentation fault (core dumped)", "native.segv"),
    ("fit.sh: line 2: 977 Killed                  python fit.py", "host.oom_kill"),
    ("[ERROR] [launch.py:321:sigkill_handler] ['python', 'fit.py'] exits with return code = -9", "host.oom_kill"),
    ("slurmstepd: error: *** JOB 31 ON n1 CANCELLED AT 2026-03-04T05:06:07 DUE TO TIME LIMIT ***", "scheduler.kill"),
    (
        "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8) ran for 600012 ms",
        "dist.timeout_desync",
    ),
    ("NVRM: Xid (PCI:0000:3b:00): 79, pid=977, GPU has fallen off the bus.", "hw.gpu"),
)


def judge(text: str, context: str = "") -> Verdict:
    return classify(Incident(texts={"log_tail.txt": text}, context=context))


def first(verdict: Verdict) -> str | None:
    return verdict.causes[0].id if verdict.causes else None


@pytest.mark.parametrize("innocent", INNOCENT)
@pytest.mark.parametrize(("end", "cause"), ENDS)
def test_the_end_counts_and_not_the_warning_before_it(innocent: str, end: str, cause: str) -> None:
    assert first(judge(f"{innocent}\nloading pages\n{end}")) == cause


@pytest.mark.parametrize("innocent", INNOCENT)
def test_a_warning_that_the_program_outlived_is_not_believed(innocent: str) -> None:
    verdict = judge(f"{innocent}\n{MOVED}")
    assert not verdict.causes or verdict.causes[0].confidence <= 0.45


@pytest.mark.parametrize("innocent", INNOCENT)
def test_a_warning_that_other_words_follow_is_never_sure(innocent: str) -> None:
    verdict = judge(f"{innocent}\nloading pages")
    assert not verdict.causes or verdict.causes[0].confidence < 0.8


def test_what_the_reporter_says_of_the_end_counts_as_well() -> None:
    assert first(judge(f"{INNOCENT[0]}\nloading pages", "exits with return code = -9")) == "host.oom_kill"


def test_a_warning_alone_is_what_somebody_asks_about() -> None:
    alone = "UserWarning: CUDA initialization: The NVIDIA driver on your system is too old (found version 11040)"
    assert judge(alone).causes[0].confidence > 0.8
    assert judge(f"{alone}\n  return torch._C._cuda_getDeviceCount() > 0").causes[0].confidence > 0.8


def test_a_warning_of_the_disease_that_the_error_is_of_stays() -> None:
    warned = (
        "UserWarning: NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current PyTorch"
    )
    assert first(judge(f"{warned} installation.\n{MOVED}\nCUDA error: unspecified launch failure")) == "build.arch"


def test_a_loss_that_is_nan_ends_nothing_and_counts() -> None:
    assert first(judge(f"WARNING: loss is nan at step 12\n{MOVED}\nWARNING: loss is nan at step 80")) == "num.nonfinite"


def test_an_error_of_the_gpu_disproves_that_there_is_none() -> None:
    end = 'Traceback (most recent call last):\n  File "fit.py", line 3, in f\n'
    end += "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.65"
    end += (
        " GiB of which 1.02 GiB is free. Including non-PyTorch memory, this process has 22.60 GiB memory in use. Of the"
    )
    end += " allocated memory 21.90 GiB is allocated by PyTorch, and 211.00 MiB is reserved by PyTorch but unallocated."
    for innocent in INNOCENT:
        assert first(judge(f"{innocent}\n{end}")) == "gpumem.capacity"


def test_a_connection_that_is_tried_for_ever_is_what_ranks_hang_in() -> None:
    tried = "n1:8:9 [0] NCCL INFO Call to connect returned Connection refused, retrying"
    assert first(judge(tried, "two nodes: the constructor of DDP hangs")) == "dist.network"
