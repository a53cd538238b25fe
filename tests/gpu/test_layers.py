"""On a real device: watching never makes the host wait inside a step, and tells the same as on the CPU."""

import copy
import math

import pytest
import torch

from ocrlab.debug.instruments import tensor_facts
from ocrlab.debug.instruments.layers import layer_watch
from ocrlab.model.dbnet import Detector

pytestmark = pytest.mark.gpu


def step(model: torch.nn.Module, images: torch.Tensor) -> None:
    maps = model(images)
    (maps.probability_logits.square().mean() + maps.threshold_logits.square().mean()).backward()


def test_a_watched_step_never_waits_for_the_device() -> None:
    model = Detector(width=32).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    images = torch.randint(0, 256, (2, 3, 128, 128), dtype=torch.uint8).cuda()
    with layer_watch.watch(model, "*") as watch:
        for strict in (False, True, True):  # the first step may choose algorithms
            torch.cuda.set_sync_debug_mode("error" if strict else "default")
            try:
                step(model, images)
                optimizer.step()
                optimizer.zero_grad()
            finally:
                torch.cuda.set_sync_debug_mode("default")
    assert not watch.fault
    table = watch.table()
    assert table["calls"].eq(1).all() and table["ms"].gt(0).all()
    assert table.loc["decoder.fusion", "allocated_mib"] > 0
    assert table.loc["decoder.fusion", "backward_ms"] > 0


def test_the_figures_are_those_of_the_cpu() -> None:
    model = Detector(width=32).eval()
    images = torch.randint(0, 256, (2, 3, 128, 128), dtype=torch.uint8)
    tables = []
    for device in ("cpu", "cuda"):
        there = copy.deepcopy(model).to(device)
        with layer_watch.watch(there, "*") as watch:
            step(there, images.to(device))
        tables.append(watch.table())
    for column in ("mean", "std", "zeros", "grad_std"):
        ours, theirs = (table[column].astype(float) for table in tables)
        assert ((ours - theirs).abs() <= 0.05 * theirs.abs() + 1e-3).all(), column


def test_a_nan_and_an_infinite_weight_are_named() -> None:
    model = Detector(width=32).cuda().train()
    images = torch.rand(3, 3, 64, 64, device="cuda")
    images[2, 1, 5, 6] = math.nan
    with layer_watch.watch(model, "*") as watch:
        step(model, images)
    first = watch.first_nonfinite
    assert first is not None and (first.what, first.sample, first.index) == ("input", 2, (2, 1, 5, 6))
    with torch.no_grad():
        model.decoder.fusion[0].weight[0, 0, 0, 0] = math.inf
    with layer_watch.watch(model, "decoder.fusion.*") as watch:
        step(model, torch.rand(3, 3, 64, 64, device="cuda"))
    first = watch.first_nonfinite
    assert first is not None
    assert (first.module, first.what, first.path) == ("decoder.fusion.0", "weight", "weight")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool], ids=str)
def test_statistics_on_the_device(dtype: torch.dtype) -> None:
    tensor = (torch.randn(2, 3, 40, 50, device="cuda").relu() * 5).to(dtype).to(memory_format=torch.channels_last)
    figures, first = tensor_facts.unpack_figures(
        tensor_facts.device_figures(tensor).tolist(), tensor.shape, tensor.stride()
    )
    truth = tensor.double()
    assert first is None and figures.zeros == int((truth == 0).sum())
    assert figures.mean == pytest.approx(float(truth.mean()), rel=1e-3)
    assert figures.std == pytest.approx(float(truth.std(correction=0)), rel=1e-3)
    assert tensor_facts.figures_of(tensor.cpu()).std == pytest.approx(figures.std, rel=1e-3)
