"""What a check takes back beside the weights: the batch, and what the model does not list."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.debug.laws.helpers import check, classes, data, finding_of, rules


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(8, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(inputs.sub_(5.0))  # type: ignore[no-any-return]


def test_a_batch_that_is_written_into_is_reported_and_restored() -> None:
    samples, targets = data(32)
    before = samples.clone()
    report = check(InPlace(), (samples[:16], targets[:16]), classes)
    finding = finding_of(report, "batch.written")
    assert finding.where == "batch.0" and finding.judgement == "fail" and "view of the data" in finding.got
    assert torch.equal(samples, before)
    alone = before[:16].clone()
    assert finding_of(check(InPlace(), (alone, targets[:16]), classes), "batch.written").judgement == "warn"
    assert torch.equal(alone, before[:16])
    assert rules(check(nn.Linear(8, 3), (alone, targets[:16]), classes)) == set()


def test_a_batch_that_is_taken_apart_or_reshaped_is_whole_again() -> None:
    samples, targets = data()
    batch = {"inputs": samples.clone(), "rest": [targets]}

    def taken(model: nn.Module, batch: dict[str, Any]) -> Tensor:
        batch["inputs"].unsqueeze_(1)
        return nn.functional.cross_entropy(model(batch["inputs"]).squeeze(1), batch["rest"].pop())

    report = check(nn.Linear(8, 3), batch, taken)
    assert not any(text.startswith("eval mode") for text in report.unchecked)
    assert torch.equal(batch["inputs"], samples) and batch["rest"] == [targets]


class Hidden(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(8, 8), nn.BatchNorm1d(8)]
        self.last = nn.Linear(8, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        for layer in self.layers:
            inputs = layer(inputs)
        return self.last(inputs)  # type: ignore[no-any-return]


def test_modules_in_a_plain_list_are_reported_and_left_as_they_were() -> None:
    model, outside = Hidden(), nn.Linear(8, 8)
    norm = model.layers[1]
    assert isinstance(norm, nn.BatchNorm1d) and norm.running_mean is not None

    def loss(net: nn.Module, batch: Any) -> Tensor:
        return classes(net, (outside(batch[0]), batch[1]))

    report = check(model, data(), loss, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    assert finding_of(report, "weights.unlisted").where == "layers"
    assert "4 tensors" in finding_of(report, "weights.unlisted").got
    assert all(p.grad is None for part in (*model.layers, outside) for p in part.parameters())
    assert not norm.running_mean.any()
    every = [*model.parameters(), *(p for layer in model.layers for p in layer.parameters())]
    assert "weights.unlisted" not in rules(check(model, data(), classes, optimizer=torch.optim.SGD(every, lr=0.1)))
    for layer in model.layers:
        layer.requires_grad_(False)  # a teacher
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert "weights.unlisted" not in rules(check(model, data(), classes, optimizer=optimizer))


class Positions(nn.Module):
    """A tensor of places that is a plain one, a parameter, one in a list, or not trained."""

    def __init__(self, way: str) -> None:
        super().__init__()
        places = torch.zeros(1, 8, requires_grad=way != "fixed")
        self.places = nn.Parameter(places.detach()) if way == "parameter" else places if way != "list" else [places]
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x + (self.places[0] if isinstance(self.places, list) else self.places))


@pytest.mark.parametrize(
    ("way", "where"), [("plain", "places"), ("list", "places[0]"), ("parameter", ""), ("fixed", "")]
)
def test_a_tensor_that_is_no_parameter_is_reported_if_it_gets_a_gradient(way: str, where: str) -> None:
    model = Positions(way)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    report = check(model, data(), classes, optimizer=optimizer)
    places = [finding.where for finding in report.findings if finding.rule == "weights.unlisted"]
    assert places == ([where] if where else [])
    tensor = model.places[0] if isinstance(model.places, list) else model.places
    assert tensor.grad is None  # as it was


class Changing(nn.Module):
    """Its forward pass, and the loss below, change all that a training step can change."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop, self.last = nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3)
        self.register_buffer("mean", torch.zeros(8))
        self.frozen = nn.Parameter(torch.ones(8), requires_grad=False)
        self.calls, self.history = 0, [1]

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        self.history.append(self.calls)
        self.mean = 0.9 * self.mean + inputs.mean(0).detach()  # another tensor in its place
        self.frozen.requires_grad_(self.calls % 2 == 1)
        self.last.bias.requires_grad_(self.calls % 2 == 0)
        self.norm.register_forward_hook(lambda *_: None)
        self.drop.train(self.calls % 2 == 1)
        return self.last(self.drop(self.norm(inputs * self.frozen + self.mean)))  # type: ignore[no-any-return]


class Refused(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        raise ValueError("no gradient")


def everything(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> dict[str, Any]:
    """Return all that a check must leave as it was, as plain values and identities."""
    tensors = [*model.named_parameters(), *model.named_buffers(), ("inputs", batch[0]), ("targets", batch[1])]
    states = [(id(p), key, item) for p, each in optimizer.state.items() for key, item in each.items()]
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    _, numpy, *rest = np.random.get_state()  # noqa: NPY002
    return {
        "values": [(name, id(t), t.detach().clone().tolist(), t.requires_grad, t.is_leaf) for name, t in tensors],
        "gradients": [
            (name, id(t.grad), None if t.grad is None else t.grad.tolist()) for name, t in tensors if t.is_leaf
        ],
        "modes": [(name, module.training) for name, module in model.named_modules()],
        "hooks": [
            (name, key, list(content))
            for name, module in model.named_modules()
            for key, content in vars(module).items()
            if "hooks" in key
        ],
        "attributes": (model.calls, list(model.history), sorted(vars(model))),
        "optimizer": (id(optimizer.state), id(optimizer.param_groups), [*map(id, optimizer.param_groups)], groups),
        "moments": [(*at, id(t), t.tolist()) for *at, t in states],
        "more": sorted(vars(optimizer)),
        "random": (random.getstate(), numpy.tolist(), rest, torch.get_rng_state().tolist()),
        "modes of torch": (torch.is_grad_enabled(), torch.is_anomaly_enabled()),
    }


@pytest.mark.parametrize("way", ["whole", "forward", "backward", "step", "interrupt"])
def test_everything_is_as_before_also_when_a_part_raises(way: str) -> None:
    torch.manual_seed(0)
    model, (inputs, targets) = Changing(), data()
    inputs = inputs.clone()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        classes(model, (inputs, targets)).backward()
        optimizer.step()
    model.last.requires_grad_(True)
    model.frozen.requires_grad_(False)
    model.drop.eval()

    def loss(net: nn.Module, batch: Any) -> Tensor:
        random.random(), np.random.rand(), torch.rand(1)  # noqa: NPY002
        batch[0].requires_grad_(True)
        optimizer.param_groups[0]["lr"] *= 0.5
        if way == "forward" and net.training:
            raise ValueError("no forward pass")
        value = classes(net, batch) + 0 * batch[0].sum()
        torch.set_grad_enabled(True)
        if way == "interrupt":
            raise KeyboardInterrupt
        return Refused.apply(value) if way == "backward" else value

    if way == "step":
        optimizer.register_step_post_hook(lambda *_: 1 / 0)
    before = everything(model, optimizer, (inputs, targets))
    if way == "interrupt":
        with pytest.raises(KeyboardInterrupt):
            check(model, (inputs, targets), loss, optimizer=optimizer)
    else:
        with torch.set_grad_enabled(way != "backward"):
            before["modes of torch"] = (torch.is_grad_enabled(), False)
            report = check(model, (inputs, targets), loss, optimizer=optimizer)
            after = everything(model, optimizer, (inputs, targets))
        assert not any(text.startswith("not put back") for text in report.unchecked)
    after = everything(model, optimizer, (inputs, targets)) if way == "interrupt" else after
    for part, value in before.items():
        assert after[part] == value, part


def test_a_loss_that_is_a_module_is_left_as_it_was() -> None:
    criterion = nn.CrossEntropyLoss(weight=torch.ones(3))
    criterion.eval()
    model = nn.Linear(8, 3)
    model.weight.grad = gradient = torch.ones(3, 8)
    check(model, data(), criterion, optimizer=torch.optim.SGD(model.parameters(), 0.1))
    assert not criterion.training and model.weight.grad is gradient and bool((gradient == 1).all())


def test_moments_in_another_precision_than_their_weights_are_not_rounded() -> None:
    model = nn.Linear(8, 3).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    master = torch.full((3, 8), 1.0009765625)  # no bfloat16
    optimizer.state[model.weight]["master"] = master
    check(model, data(), lambda net, batch: classes(net, (batch[0].bfloat16(), batch[1])), optimizer=optimizer)
    assert optimizer.state[model.weight]["master"] is master and master.dtype == torch.float32
