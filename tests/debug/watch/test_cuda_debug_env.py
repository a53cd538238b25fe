"""The switches of --debug-cuda."""

from __future__ import annotations

from pathlib import Path

from ocrlab.debug.watch import cuda_debug_env


def test_what_is_set_already_stays_but_launches_wait():
    user = {"CUDA_LOG_FILE": "mine.txt", "CUDA_LAUNCH_BLOCKING": "0"}
    variables = cuda_debug_env.environment(Path("/dumps"), user)
    assert "CUDA_LOG_FILE" not in variables
    assert variables["CUDA_LAUNCH_BLOCKING"] == variables["TORCH_SHOW_CPP_STACKTRACES"] == "1"
    assert variables["CUDA_COREDUMP_FILE"] == "/dumps/cuda-core-%p"
    assert "skip_abort" in variables["CUDA_COREDUMP_GENERATION_FLAGS"]


def test_the_words_name_every_switch_and_what_is_not_done():
    words = cuda_debug_env.words(Path("/dumps"))
    assert all(f"{name}={value}" in words for name, (value, _) in cuda_debug_env.switches(Path("/dumps")).items())
    assert "TORCH_USE_CUDA_DSA is not set" in words


def test_a_program_gets_them(watched):
    code = "import os; print(os.environ['CUDA_LAUNCH_BLOCKING'], 'TORCH_USE_CUDA_DSA' in os.environ)"
    done = watched(code, "--debug-cuda")
    assert done.out == b"1 False\n"
    assert "CUDA_LAUNCH_BLOCKING=1" in done.err and "out/flight/cuda-core" in done.err
