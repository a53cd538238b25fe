"""On a real device: its own out-of-memory messages are split by cause, and the monitor sees who holds the memory."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from ocrlab.debug.memory.explain_oom import OomAnswer, explain_oom
from ocrlab.debug.memory.monitor_log import Monitor
from ocrlab.debug.watch.supervisor import Options, watch

pytestmark = [pytest.mark.gpu, pytest.mark.slow]
FILL = """
import torch
total = torch.cuda.mem_get_info()[0]
blocks = [torch.empty(int(0.8 * total), dtype=torch.uint8, device="cuda")]
blocks.append(torch.empty(int(0.5 * total), dtype=torch.uint8, device="cuda"))
"""
TEAR = """
import torch
total = torch.cuda.mem_get_info()[0]
size = total // 64
whole = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(60)]
del whole
torch.cuda.empty_cache()
blocks = []
for _ in range(28):
    pair = torch.empty(2 * size, dtype=torch.uint8, device="cuda")
    del pair
    blocks.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
    blocks.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
del blocks[1::2]
torch.empty(8 * size, dtype=torch.uint8, device="cuda")
"""
HOLD = """
import sys, torch
block = torch.empty(int(0.7 * torch.cuda.mem_get_info()[0]), dtype=torch.uint8, device="cuda")
print("held", flush=True)
sys.stdin.read()
"""
ASK = "import torch\ntorch.empty(int(0.5 * torch.cuda.mem_get_info()[1]), dtype=torch.uint8, device='cuda')"


def failed(folder: Path, code: str) -> OomAnswer:
    watch([sys.executable, "-c", code], Options(folder), output=lambda _stream, _data: None)
    return explain_oom(str(folder))


def test_more_than_the_card_has(tmp_path: Path) -> None:
    assert failed(tmp_path / "run", FILL).kind.kind == "capacity"


def test_a_request_of_an_absurd_size(tmp_path: Path) -> None:
    code = "import torch\ntorch.empty(1 << 46, dtype=torch.uint8, device='cuda')"
    assert failed(tmp_path / "run", code).kind.kind == "absurd size"


def test_memory_in_pieces_and_the_remedy_for_it(tmp_path: Path) -> None:
    oom = failed(tmp_path / "run", TEAR)
    assert oom.kind.kind in ("fragmentation", "capacity")


def test_another_process_holds_the_card(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        oom = failed(tmp_path / "run", ASK)
        assert oom.kind.kind == "another process"
        assert "cards" in oom.run.facts["gpus"]
    finally:
        holder.communicate()


def test_the_monitor_sees_this_process_on_the_card() -> None:
    tensor = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    monitor = Monitor(os.getpid(), 0.5)
    try:
        monitor.stream.came.wait(20)
        time.sleep(1.0)
        sample = monitor.sample()
    finally:
        monitor.close()
    card = sample["gpus"]["cards"][torch.cuda.current_device()]
    assert card["used"] >= tensor.numel()
    assert "temperature" in card
