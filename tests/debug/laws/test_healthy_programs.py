"""Unusual programs that are right: no law is broken and nothing is hinted."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import ocrlab
from tests.debug.laws.helpers import classes, data

Program = tuple[nn.Module, Callable[[nn.Module, Any], Tensor], list[nn.Parameter]]


def frozen_encoder() -> Program:
    encoder = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU()).requires_grad_(False)
    encoder[0].weight.data.mul_(2)
    encoder[1].running_mean.fill_(0.1)
    model = nn.Sequential(encoder, nn.Linear(16, 3))
    encoder.eval()
    return model, classes, list(model[1].parameters())


class Lora(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base, self.norm = nn.Linear(8, 16).requires_grad_(False), nn.LayerNorm(16)
        self.down, self.up = nn.Parameter(torch.randn(2, 8) / 4), nn.Parameter(torch.zeros(16, 2))
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.base(x) + x @ self.down.T @ self.up.T).relu())


def lora() -> Program:
    model = Lora()
    return model, classes, [p for p in model.parameters() if p.requires_grad]


class Agent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.online = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
        self.target = copy.deepcopy(self.online)

    def forward(self, x: Tensor) -> Tensor:
        return self.online(x)


def target_network() -> Program:
    model = Agent()

    def loss(net: nn.Module, batch: Any) -> Tensor:
        with torch.no_grad():
            ahead = net.target(batch[0].flip(0)).max(1).values
        return functional.smooth_l1_loss(net(batch[0]).gather(1, batch[1][:, None])[:, 0], 1 + 0.9 * ahead)

    return model, loss, list(model.online.parameters())


def gradient_penalty() -> Program:
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))

    def loss(net: nn.Module, batch: Any) -> Tensor:
        with torch.enable_grad():
            x = batch[0].clone().requires_grad_(True)
            [gradient] = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        real = batch[1].float() - 1
        return (net(batch[0])[:, 0] * real).mean() + (gradient.norm(dim=1) - 1).square().mean()

    return model, loss, list(model.parameters())


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router, self.head = nn.Linear(8, 4), nn.Linear(8, 3)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        nn.init.constant_(self.router.bias[3:], -100.0)  # no sample of this batch goes to the last

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero()[:, 0]
            if len(rows):
                out = out.index_add(0, rows, weights[rows, None] * expert(x[rows]))
        return self.head(x + out)


def unused_experts() -> Program:
    model = Experts()
    return model, classes, list(model.parameters())


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(23, 16), nn.Linear(16, 23, bias=False)
        self.mix = nn.GRU(16, 16, batch_first=True)
        self.out.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.mix(self.embed(ids))[0])


def weight_tying() -> Program:
    model = Tied()

    def loss(net: nn.Module, batch: Any) -> Tensor:
        ids = torch.randint(1, 23, (16, 12), generator=torch.Generator().manual_seed(3))
        return functional.cross_entropy(net(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

    return model, loss, list(model.parameters())


class Quantised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = self.into(x).tanh()
        return self.out(z + (z.sign() - z).detach())


def straight_through() -> Program:
    model = Quantised()
    return model, classes, list(model.parameters())


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
        self.gate, self.head = nn.Parameter(torch.zeros(())), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.gate * self.block(x))


def zero_gate() -> Program:
    model = Gate()
    return model, classes, list(model.parameters())


class OwnTrain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.norm.running_mean.fill_(0.2)
        self.train()

    def train(self, mode: bool = True) -> OwnTrain:
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x))


def own_train() -> Program:
    model = OwnTrain()
    return model, classes, list(model.parameters())


PROGRAMS = (
    frozen_encoder, lora, target_network, gradient_penalty, unused_experts, weight_tying,
    straight_through, zero_gate, own_train,
)  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_program_that_is_right_has_no_finding(program: Callable[[], Program]) -> None:
    torch.manual_seed(0)
    model, loss, parameters = program()
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 10))  # from 0
    loader = DataLoader(TensorDataset(*data(64)), batch_size=16, shuffle=True)
    report = ocrlab.check_step(model, data(), loss, optimizer, loader=loader, scheduler=warm_up)
    assert report.findings == [], str(report)


class WholeLoss(nn.Module):
    def forward(self, model: nn.Module, batch: Any) -> Tensor:
        return functional.cross_entropy(model(batch["x"]), batch["y"])


class TwoSteps(torch.optim.SGD):
    """Sharpness-aware: the loop makes a first step, which `step` takes back."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            p.data.copy_(self.state[p]["before"])
        super().step()


def test_a_loss_module_of_model_and_batch_and_an_optimizer_with_a_first_step_of_its_own() -> None:
    model = nn.Linear(8, 3)
    optimizer = TwoSteps(model.parameters(), lr=0.1)
    report = ocrlab.check_step(model, dict(zip("xy", data(), strict=True)), WholeLoss(), optimizer)
    assert report.findings == [] and "TwoSteps.step() raised KeyError: 'before'" in report.unchecked[0], str(report)


def test_a_scripted_loss_of_outputs_and_targets() -> None:
    loss = torch.jit.script(nn.CrossEntropyLoss())
    assert ocrlab.check_step(nn.Linear(8, 3), data(), loss).findings == []


def test_short_texts_without_a_masked_token() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(30, 8), nn.Linear(8, 30)

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.table(ids))

    torch.manual_seed(0)
    ids, lengths = torch.randint(1, 30, (16, 12)), torch.tensor([3, 12, 4, 12] * 4)
    mask = (torch.arange(12) < lengths[:, None]).long()
    labels = torch.where((torch.arange(12) == 5) & (mask == 1), ids, -100)
    batch = {"input_ids": ids * mask, "attention_mask": mask, "labels": labels}

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return functional.cross_entropy(model(batch["input_ids"]).flatten(0, 1), batch["labels"].flatten())

    report = ocrlab.check_step(Masked(), batch, loss)
    assert not [f for f in report.findings if f.rule == "data.labels"], str(report)
    batch["labels"] = torch.where(torch.arange(16)[:, None] % 2 == 0, labels, -100)  # of whole texts, too
    assert [f for f in ocrlab.check_step(Masked(), batch, loss).findings if f.rule == "data.labels"]
