"""Tests of ocrlab/model/memory_saving.py: less memory, and the numbers that they were."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from ocrlab.debug.instruments.memory.estimate import estimate
from ocrlab.model.dbnet import Detector
from ocrlab.model.memory_saving import FrozenBatchNorm2d, counted_once, freeze

SMALL = (2, 3, 64, 96)


def images() -> Tensor:
    return torch.randint(0, 256, SMALL, generator=torch.Generator().manual_seed(1), dtype=torch.uint8)


def detector(encoder: str = "resnet18_slim") -> Detector:
    torch.manual_seed(0)
    return Detector(encoder, width=16)


def step(model: nn.Module, kind: torch.dtype | None = None) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Return the loss, the gradients and the buffers after two steps."""
    loss = torch.zeros(())
    for _ in range(2):
        model.zero_grad()
        with torch.autocast("cpu", kind or torch.bfloat16, enabled=kind is not None):
            maps = model(images())
        loss = maps.probability_logits.float().square().mean() + maps.threshold_logits.float().mean()
        loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return loss.detach(), gradients, {name: b.clone() for name, b in model.named_buffers()}


@pytest.mark.parametrize("kind", [None, torch.bfloat16])
@pytest.mark.parametrize("encoder", ["resnet18_slim", "mobilenet_v3_large"])
def test_stages_computed_again_give_the_same_bits(encoder: str, kind: torch.dtype | None) -> None:
    plain, again = detector(encoder), detector(encoder)
    again.encoder.checkpoint_activations = True
    for expected, actual in zip(step(plain, kind), step(again, kind), strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def test_both_need_less_than_a_plain_step() -> None:
    batch = torch.empty(8, 3, 256, 256, dtype=torch.uint8, device="meta")

    def peak(change: Callable[[Detector], None]) -> int:
        model = detector()
        change(model)
        return estimate(model, batch, lambda net, inputs: net(inputs).probability_logits.mean()).peak

    plain = peak(lambda _: None)
    assert peak(lambda model: setattr(model.encoder, "checkpoint_activations", True)) < 0.8 * plain
    assert peak(lambda model: freeze(model.encoder)) < 0.9 * plain


@pytest.mark.slow
def test_a_compiled_model_counts_a_batch_once() -> None:
    plain, again = detector(), detector()
    again.encoder.checkpoint_activations = True
    loss, _, buffers = step(plain)
    actual, _, counted = step(torch.compile(again))
    torch.testing.assert_close(actual, loss, rtol=1e-4, atol=1e-5)
    for name, value in buffers.items():
        torch.testing.assert_close(counted[f"_orig_mod.{name}"], value, rtol=1e-4, atol=1e-4)


def test_an_error_gives_everything_back() -> None:
    norm = nn.BatchNorm2d(2, momentum=0.3)
    count = norm.num_batches_tracked
    with pytest.raises(KeyError), counted_once(norm):
        norm(torch.randn(2, 2, 3, 3))
        raise KeyError
    assert norm.momentum == 0.3
    assert norm.num_batches_tracked is count
    assert count == 0
    assert torch.equal(norm.running_mean, torch.zeros(2))
    fixed = nn.BatchNorm2d(2, track_running_stats=False)
    with counted_once(fixed):
        assert fixed.momentum == 0.1


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_frozen_is_batchnorm_in_evaluation(kind: torch.dtype, last: bool) -> None:
    torch.manual_seed(0)
    trained = nn.BatchNorm2d(8)
    for tensor in (trained.weight.data, trained.bias.data, trained.running_mean, trained.running_var):
        tensor.uniform_(0.5, 2)  # type: ignore[union-attr]
    frozen = FrozenBatchNorm2d(copy.deepcopy(trained))
    trained.eval().requires_grad_(False)
    layout = torch.channels_last if last else torch.contiguous_format
    x = torch.randn(3, 8, 5, 7).to(kind, memory_format=layout)
    pairs = []
    for norm in (trained, frozen):
        inputs = x.clone().requires_grad_()
        out = norm(inputs)
        out.backward(x)
        pairs.append((out.detach(), inputs.grad))
        assert out.dtype == kind
        assert out.is_contiguous(memory_format=layout)
    torch.testing.assert_close(pairs[1], pairs[0])


def test_frozen_keeps_no_map_and_its_names() -> None:
    plain, model = detector(), detector()
    freeze(model.encoder)
    assert model.state_dict().keys() == plain.state_dict().keys()
    assert not any(isinstance(m, nn.BatchNorm2d) for m in model.encoder.modules())
    assert [p.shape for p in model.parameters()] == [p.shape for p in plain.parameters()]
    before = {name: t.clone() for name, t in model.encoder.state_dict().items() if "running" in name}
    step(model)
    assert before
    for name, tensor in before.items():
        assert torch.equal(model.encoder.state_dict()[name], tensor)
    maps = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: maps.append(t.ndim) or t, lambda t: t):
        FrozenBatchNorm2d(nn.BatchNorm2d(4))(torch.zeros(1, 4, 2, 2, requires_grad=True))
    assert set(maps) == {1}


def test_sync_batchnorm_leaves_the_frozen_alone() -> None:
    model = detector()
    freeze(model.encoder)
    nn.SyncBatchNorm.convert_sync_batchnorm(model)
    assert not any(isinstance(m, nn.SyncBatchNorm) for m in model.encoder.modules())
    assert any(isinstance(m, nn.SyncBatchNorm) for m in model.modules())
