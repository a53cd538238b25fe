"""Choices for the machine: what the config fixes is kept, a device that fails its smoke test is not used."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from ocrlab.config import schema as configs
from ocrlab.errors import ConfigError
from ocrlab.hardware import host
from ocrlab.training import auto_settings


def test_fixed_settings_stay(monkeypatch):
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    fixed = ["trainer.accelerator=cpu", "trainer.precision=fp32", "runtime.channels_last=true", "runtime.threads=1"]
    machine = auto_settings.choose(configs.load(overrides=[*fixed, "runtime.workers=3"]))
    assert (machine.accelerator, machine.threads, machine.workers) == ("cpu", 1, 3)
    assert (machine.bf16, machine.channels_last) == (False, True)


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


def test_bf16_that_onednn_does_not_have_is_not_tried(monkeypatch):
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    monkeypatch.setattr(auto_settings, "_step", lambda _model, _device, _side, bf16: lambda: 0.001 if bf16 else 0.1)
    monkeypatch.setattr(auto_settings, "packable", lambda _kind: False)
    machine = auto_settings.choose(configs.load(overrides=["trainer.accelerator=cpu"]))
    assert not machine.bf16
    assert "bf16" not in machine.reasons["formats"]
    assert machine.reasons["precision"].startswith("fp32: oneDNN has no bf16")
    assert auto_settings.choose(configs.load(overrides=["trainer.accelerator=cpu", "trainer.precision=bf16"])).bf16


def test_few_cores_load_in_line(monkeypatch):
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    fixed = ["trainer.accelerator=cpu", "trainer.precision=fp32", "runtime.channels_last=false"]
    monkeypatch.setattr(host, "cores", lambda *_: 2)
    assert auto_settings.choose(configs.load(overrides=fixed)).workers == 0
    monkeypatch.setattr(host, "cores", lambda *_: 16)
    assert auto_settings.choose(configs.load(overrides=fixed)).workers == 8


def test_cuda_that_is_not_there_is_refused_and_auto_falls_back(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="trainer.accelerator=cpu"):
        auto_settings.accelerator_for("cuda")
    assert auto_settings.accelerator_for("auto") == ("cpu", "torch sees no CUDA device")


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "signal 4"),
        ("raise SystemExit('CUDA error: an illegal instruction was encountered')", "illegal instruction"),
        ("import time; time.sleep(60)", "no answer within 1 s"),
    ],
)
def test_a_device_that_fails_in_the_child_is_not_used(monkeypatch, program, message):
    run = subprocess.run
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(auto_settings, "SMOKE_DEADLINE", 1 if "no answer" in message else 60)
    monkeypatch.setattr(auto_settings.subprocess, "run", lambda *_c, **kw: run([sys.executable, "-c", program], **kw))
    device, reason = auto_settings.accelerator_for("auto")
    assert device == "cpu"
    assert "smoke test" in reason
    assert message in reason


def test_smoke_passes_on_the_cpu():
    assert auto_settings.smoke("cpu") is None
