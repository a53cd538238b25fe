"""Choices for the machine, the optimizer, the lines about CUDA."""

import itertools
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from ocrlab.config import schema as configs
from ocrlab.config.schema import Config, Optim
from ocrlab.errors import ConfigError
from ocrlab.training import auto_settings, cuda_debug_info
from ocrlab.training.optimizer import adamw, learning_rate


def test_fixed_settings_stay(monkeypatch):
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    fixed = ["trainer.accelerator=cpu", "trainer.precision=fp32", "runtime.channels_last=true", "runtime.threads=1"]
    machine = auto_settings.choose(configs.load(overrides=[*fixed, "runtime.workers=3"]))
    assert (machine.accelerator, machine.threads, machine.workers) == ("cpu", 1, 3)
    assert (machine.bf16, machine.channels_last) == (False, True)


def test_the_number_of_threads_that_the_environment_asks_for_is_kept(monkeypatch):
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    monkeypatch.setattr(auto_settings.host, "cores", lambda: 4)
    fixed = configs.load(overrides=["trainer.accelerator=cpu", "trainer.precision=fp32", "runtime.channels_last=true"])
    for asked, threads in (("1", 1), ("3", 3), ("64", 4), ("many", 4), ("0", 4), ("", 4)):
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
        monkeypatch.setattr(auto_settings.host, "physical_cores", lambda: 4)
        assert auto_settings.choose(fixed).threads == threads, asked


def test_the_rest_is_measured_and_says_so(monkeypatch):
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    seconds = {(True, True): 0.1, (True, False): 0.2, (False, True): 0.3, (False, False): 0.4}
    tried: list[tuple[int, bool, bool]] = []

    def fake_step(last, _device, side, bf16):
        tried.append((side, bf16, last))
        return lambda: seconds[bf16, last] * side

    monkeypatch.setattr(auto_settings, "_model", lambda _config, _device, last: last)

    monkeypatch.setattr(auto_settings, "_step", fake_step)
    monkeypatch.setattr(auto_settings, "packable", lambda _kind: True)
    machine = auto_settings.choose(configs.load(overrides=["trainer.accelerator=cpu"]))
    assert (machine.bf16, machine.channels_last) == (True, True)
    assert "fp32 contiguous" in machine.reasons["formats"]
    assert [row for row in tried if row[0] == 256] == [(256, True, True)]  # the others are far behind
    seconds[False, False] = 0.01
    machine = auto_settings.choose(configs.load(overrides=["trainer.accelerator=cpu"]))
    assert (machine.bf16, machine.channels_last) == (False, False)
    monkeypatch.setattr(auto_settings, "packable", lambda _kind: False)  # bf16 would be the fastest
    seconds[True, True] = 0.001
    machine = auto_settings.choose(configs.load(overrides=["trainer.accelerator=cpu"]))
    assert not machine.bf16 and machine.reasons["precision"].startswith("fp32: oneDNN has no bf16")
    assert auto_settings.choose(configs.load(overrides=["trainer.accelerator=cpu", "trainer.precision=bf16"])).bf16


def test_what_is_tried_is_no_larger_than_the_training_and_leaves_no_gradients(monkeypatch):
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    sides, models, step, model = [], [], auto_settings._step, auto_settings._model
    monkeypatch.setattr(auto_settings, "_step", lambda *args: sides.append(args[2]) or step(*args))
    monkeypatch.setattr(auto_settings, "_model", lambda *args: models.append(model(*args)) or models[-1])
    fixed = ["trainer.accelerator=cpu", "trainer.precision=fp32", "encoder=resnet18_slim", "width=32", "crop=64"]
    auto_settings.choose(configs.load(overrides=fixed))
    assert set(sides) == {64}
    assert len(models) == 2
    assert all(p.grad is None for network in models for p in network.parameters())


def test_cuda_that_is_not_there_is_refused_and_auto_falls_back(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="trainer.accelerator=cpu"):
        auto_settings.accelerator_for("cuda")
    assert auto_settings.accelerator_for("auto") == ("cpu", "torch sees no CUDA device")


@pytest.mark.parametrize(("program", "message"), [
    ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "signal 4"),
    ("raise SystemExit('CUDA error: an illegal instruction was encountered')", "illegal instruction"),
    ("import time; time.sleep(60)", "no answer within 1 s"),
])  # fmt: skip
def test_a_device_that_fails_in_the_child_is_not_used(monkeypatch, program, message):
    run = subprocess.run
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(auto_settings, "SMOKE_DEADLINE", 1 if "no answer" in message else 60)
    monkeypatch.setattr(auto_settings.subprocess, "run", lambda *_c, **kw: run([sys.executable, "-c", program], **kw))
    device, reason = auto_settings.accelerator_for("auto")
    assert device == "cpu"
    assert "smoke test" in reason
    assert message in reason


def test_vectors_are_not_decayed():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    optimizer = adamw(model, Optim(lr=0.25, weight_decay=0.5))
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert {name: decay[id(p)] for name, p in model.named_parameters()} == {
        "0.weight": 0.5, "0.bias": 0.0, "1.weight": 0.0, "1.bias": 0.0
    }  # fmt: skip
    assert all(group["lr"] == 0.25 for group in optimizer.param_groups)


def test_rate_warms_up_then_falls_to_zero():
    curve = [learning_rate(step, 10, 100) for step in range(101)]
    assert curve[0] == pytest.approx(0.1)
    assert max(curve) == 1.0
    assert curve[100] == pytest.approx(0)
    assert all(a >= b for a, b in itertools.pairwise(curve[10:]))


@pytest.mark.parametrize(
    ("flag", "setting", "wanted"), [("1", False, True), ("0", False, False), ("", True, True), ("off", False, False)]
)
def test_wanted_by_environment_or_config(flag, setting, wanted, monkeypatch):
    monkeypatch.setenv("DEBUG_CUDA", flag)
    assert cuda_debug_info.wanted(Config(runtime={"debug_cuda": setting})) is wanted


def test_block_launches_sets_the_flag_that_the_lines_show(monkeypatch):
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "0")
    cuda_debug_info.block_launches()
    assert os.environ["CUDA_LAUNCH_BLOCKING"] == "1"
    assert "[CUDA Info] CUDA_LAUNCH_BLOCKING=1" in cuda_debug_info.lines()


def test_devices_are_named_and_a_sick_device_does_not_hide_the_others(monkeypatch):
    def properties(index):
        if index == 0:
            raise RuntimeError("CUDA error: unknown error\nlong advice")
        return SimpleNamespace(name="RTX 3060", major=8, minor=6, total_memory=12 * 2**30)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    lines = cuda_debug_info.lines()
    assert "[CUDA Info] device 0: gives no answer: CUDA error: unknown error" in lines
    assert "[CUDA Info] device 1: RTX 3060, capability 8.6, 12.0 GiB" in lines
