"""A GPU generation against what a wheel was built for."""

from __future__ import annotations

import pytest

from ocrlab.debug.diagnosis import oom_message
from ocrlab.debug.diagnosis.cuda_compatibility import mismatch
from ocrlab.hardware.processes import exit_codes


@pytest.mark.parametrize(
    "text, says",
    [
        ("GPU: NVIDIA GeForce RTX 3090\ntorch 1.5.0+cu101", "needs CUDA 11.0"),
        ("NVIDIA GeForce RTX 5090, torch==2.5.1+cu124", "needs CUDA 12.8"),
        ("RTX 5080 torch 2.4.1", "needs torch 2.7"),
        ("image nvidia/cuda:8.0-cudnn5-devel on an RTX 2080", "needs CUDA 10.0"),
        ("Tesla P100, PyTorch 2.9.0+cu130", "dropped"),
        ("RTX 3080 with tensorflow-gpu==1.15", "needs CUDA 11.0"),
    ],
)
def test_a_card_that_the_wheel_cannot_serve(text: str, says: str) -> None:
    conflict = mismatch(text)
    assert conflict is not None
    assert says in conflict.why


@pytest.mark.parametrize(
    "text",
    [
        "RTX 3090, torch 2.1.0+cu118",
        "Tesla V100, torch 1.4.0+cu101",
        "RTX 4090 | CUDA Version: 12.4 | torch 2.3.0",
        "torch 2.1",
        "RTX 5090",
        "",
    ],
)
def test_what_fits_or_is_not_named_is_left_alone(text: str) -> None:
    assert mismatch(text) is None


@pytest.mark.parametrize(
    "text, signal",
    [
        ("Process finished with exit code 137 (interrupted by signal 9: SIGKILL)", "SIGKILL"),
        ("exitcode  : -9 (pid: 4021)", "SIGKILL"),
        ("Process finished with exit code -1073741819 (0xC0000005)", "SIGSEGV"),
        ("subprocess.CalledProcessError: died with <Signals.SIGILL: 4>.", "SIGILL"),
        ("Signal 11 (SIGSEGV) received by PID 123", "SIGSEGV"),
    ],
)
def test_ways_to_write_a_signal(text: str, signal: str) -> None:
    assert exit_codes.find_signals(text)[0][0] == signal


@pytest.mark.parametrize("text", ["exit code 1", "exited with code 0", "exit status 2", "step 137 of 139"])
def test_ordinary_exit_codes_are_no_signals(text: str) -> None:
    assert exit_codes.find_signals(text) == []


def test_memory_that_nobody_in_the_table_holds() -> None:
    head = "| N/A   36C    P0    41W / 300W |  12799MiB / 16280MiB |      0%  |\n| Processes:   GPU Memory |\n"
    assert oom_message.orphaned_memory(head) == (12799, 16280, head.index("12799"))
    assert oom_message.orphaned_memory(head + "|    0      4133      C   python      12700MiB |") is None
    assert oom_message.orphaned_memory(head.replace("12799", "312")) is None


def test_a_bare_number_is_a_card_only_next_to_the_word() -> None:
    assert mismatch("a new graphics card, a 3080 instead of a 1050; torch 1.2.0, cuda 10.0") is not None
    assert mismatch("3080 pages; torch 1.2.0, cuda 10.0") is None
