"""On a real device: no host synchronisation in loss and step, the loss in a CUDA graph, and equality with the CPU."""

import pytest
import torch

from ocrlab.losses.db_loss import TargetMaps, db_loss, on_device
from ocrlab.model.dbnet import Detector

pytestmark = pytest.mark.gpu
WEIGHTS = (5.0, 1.0, 10.0)


def batch(size: int = 128, device: str = "cuda") -> tuple[torch.Tensor, torch.Tensor, TargetMaps]:
    g = torch.Generator().manual_seed(0)
    shape = (2, 1, size, size)
    x, y = (torch.randn(shape, generator=g).to(device).requires_grad_() for _ in range(2))
    maps = TargetMaps(*((torch.rand(shape, generator=g) < share).float().to(device) for share in (0.1, 0.9, 0.5, 0.3)))
    return x, y, maps


def test_loss_and_step_never_wait_for_the_device():
    model = Detector(width=64).cuda().to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    images = torch.randint(0, 256, (2, 3, 128, 128), dtype=torch.uint8).cuda()
    _, _, maps = batch()
    for strict in (False, True):  # the first step may choose algorithms
        torch.cuda.set_sync_debug_mode("error" if strict else "default")
        try:
            with torch.autocast("cuda", torch.bfloat16):
                out = model(images)
            db_loss(*out, maps).total.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            optimizer.zero_grad()
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_loss_can_be_captured_in_a_graph():
    x, y, maps = batch()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            on_device(x, y, maps, WEIGHTS, 3.0).total.backward()
    torch.cuda.current_stream().wait_stream(stream)
    x.grad = y.grad = None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        total = on_device(x, y, maps, WEIGHTS, 3.0).total
        total.backward()
    graph.replay()
    want = on_device(x.detach().cpu(), y.detach().cpu(), TargetMaps(*(m.cpu() for m in maps)), WEIGHTS, 3.0).total
    assert float(total) == pytest.approx(float(want), rel=1e-5)


def test_gradients_equal_those_of_the_cpu():
    grads = []
    for device in ("cuda", "cpu"):
        x, y, maps = batch(device=device)
        db_loss(x, y, maps).total.backward()
        grads.append((x.grad.cpu(), y.grad.cpu()))
    for got, want in zip(*grads, strict=True):
        assert float((got - want).norm()) <= 1e-5 * float(want.norm())
