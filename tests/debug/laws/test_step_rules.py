"""Rules of a step from its loss on."""

import copy
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ocrlab.debug.laws.observation import gradient_norm
from tests.debug.laws.helpers import check, classes, data, finding_of, rules


def test_a_loss_without_a_graph_is_named_and_not_every_weight() -> None:
    model = nn.Linear(8, 3)
    report = check(model, data(), lambda m, b: torch.tensor(classes(m, b).item(), requires_grad=True))
    assert "made anew" in finding_of(report, "loss.gradient").got
    assert "gradient.missing" not in rules(report)


def test_a_warm_up_from_zero_is_no_finding_but_a_rate_of_zero_is() -> None:
    model = nn.Linear(8, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 10)
    report = check(model, data(), classes, optimizer=optimizer)
    assert report.findings == []
    report = check(model, data(), classes, optimizer=torch.optim.AdamW(model.parameters(), lr=0.0))
    assert finding_of(report, "optimizer.rate").got == "learning rate 0"


def test_a_decay_that_eats_the_weights_and_a_step_that_makes_it_worse() -> None:
    model = nn.Linear(8, 3)
    report = check(model, data(), classes, optimizer=torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=100))
    assert "10.0% of the weights" in finding_of(report, "optimizer.decay").got
    report = check(model, data(), classes, optimizer=torch.optim.SGD(model.parameters(), lr=1e3))
    assert "larger" in finding_of(report, "step.worse").got
    assert rules(check(model, data(), classes, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))) == set()


def test_steps_that_half_precision_rounds_away() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 3)).bfloat16()
    batch = (data()[0].bfloat16(), data()[1])
    small = check(model, batch, classes, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-6))
    assert "rounds the others back" in next(f.got for f in small.findings if f.rule == "weights.still")
    large = check(model, batch, classes, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2))
    assert "weights.still" not in rules(large)


def test_a_loss_of_none_is_reported_with_its_source() -> None:
    report = check(nn.Linear(8, 3), data(), lambda model, batch: None)
    assert "`return`" in finding_of(report, "loss.type").do and "loss None" not in str(report)
    assert ".item()" in finding_of(check(nn.Linear(8, 3), data(), lambda model, batch: 0.5), "loss.type").do


def test_the_norm_of_a_complex_gradient_has_both_parts() -> None:
    net = nn.Module()
    net.spectrum = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    net.spectrum.grad = torch.tensor([3 + 4j, 0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert gradient_norm(net.spectrum.grad) == 5.0


class Adapter(nn.Module):
    """A frozen layer with a low rank beside it, whose second half begins at 0."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.base = nn.Linear(8, width).requires_grad_(False)
        self.down, self.up = nn.Parameter(torch.randn(2, 8)), nn.Parameter(torch.zeros(width, 2))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.base(inputs) + inputs @ self.down.T @ self.up.T  # type: ignore[no-any-return]


def test_a_gate_that_begins_at_zero_is_no_finding_also_in_a_warm_up() -> None:
    model = nn.Sequential(Adapter(8), nn.Tanh(), Adapter(3))
    trained = [p for p in model.parameters() if p.requires_grad]
    for rate in (1e-3, 0.0):
        optimizer = torch.optim.AdamW([{"params": trained, "initial_lr": 1e-3}], lr=rate)
        assert rules(check(model, data(), classes, optimizer=optimizer)) == set()
    assert rules(check(model, data(), classes)) == set()
    assert not any(bool(part.up.any()) for part in model if isinstance(part, Adapter))


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.back = nn.Linear(8, 4), nn.Linear(2, 8)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, spread = self.into(inputs).chunk(2, 1)
        return self.back(mean + torch.randn_like(mean) * (spread / 2).exp()), mean, spread


def variational(model: nn.Module, batch: Any) -> Tensor:
    decoded, mean, spread = model(batch[0])
    divergence = -0.5 * (1 + spread - mean.square() - spread.exp()).sum(1).mean()
    return functional.mse_loss(decoded, batch[0]) + divergence


def denoised(model: nn.Module, batch: Any) -> Tensor:
    noise, amount = torch.randn_like(batch[0]), torch.rand(len(batch[0]), 1)
    return functional.mse_loss(model(batch[0] * (1 - amount) + noise * amount), noise)


def fooled(model: nn.Module, batch: Any) -> Tensor:
    assert isinstance(model, nn.ModuleList)
    real, fake = model[1](batch[0]), model[1](model[0](torch.randn(len(batch[0]), 4)))
    labels = torch.full((len(real), 1), 0.9)
    some = functional.binary_cross_entropy_with_logits
    return some(fake, torch.ones_like(fake)) + some(real, labels.to(real.device))


def valued(model: nn.Module, batch: Any) -> Tensor:
    actions = torch.randint(0, 3, (len(batch[0]), 1))
    with torch.no_grad():
        ahead = model(batch[0].flip(0)).max(1).values
    return functional.smooth_l1_loss(model(batch[0]).gather(1, actions)[:, 0], ahead * 0.9 + batch[1])


def judged(model: nn.Module, batch: Any) -> Tensor:
    return (model(torch.randn_like(batch[0])).mean() - model(batch[0]).mean()).float()


def test_own_noise_and_constant_labels_are_no_finding() -> None:
    torch.manual_seed(0)
    game = nn.ModuleList([nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 8), nn.LeakyReLU(), nn.Linear(8, 1))])
    critic = nn.Sequential(nn.Linear(8, 8), nn.LeakyReLU(), nn.Linear(8, 1))  # its last bias cancels out
    pairs = [(Autoencoder(), variational), (nn.Linear(8, 8), denoised), (game, fooled), (nn.Linear(8, 3), valued)]
    for model, loss in (*pairs, (critic, judged)):
        report = check(model, data(), loss, optimizer=torch.optim.Adam(model.parameters(), 1e-3))
        assert report.findings == [], loss.__name__


class Contrast(nn.Module):
    """Momentum contrast: an average of the weights and a queue, both moved by the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(8, 4)
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        nn.init.normal_(self.key.weight)
        self.register_buffer("queue", functional.normalize(torch.randn(32, 4), dim=1))

    def forward(self, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            for new, old in zip(self.query.parameters(), self.key.parameters(), strict=True):
                old.lerp_(new, 0.01)
            keys = functional.normalize(self.key(inputs), dim=1)
        queries, queue = functional.normalize(self.query(inputs), dim=1), self.get_buffer("queue").clone()
        self.get_buffer("queue").copy_(torch.cat([queue[len(keys) :], keys]))
        return torch.cat([(queries * keys).sum(1, keepdim=True), queries @ queue.T], 1) / 0.1


def test_an_average_and_a_queue_that_the_forward_pass_moves_are_not_the_optimizers_fault() -> None:
    model = Contrast()
    optimizer = torch.optim.SGD(model.query.parameters(), lr=0.01)

    def loss(net: nn.Module, batch: Any) -> Tensor:
        logits = net(batch[0])
        return functional.cross_entropy(logits, torch.zeros(len(logits)).long())

    report = check(model, data(), loss, optimizer=optimizer)
    assert report.findings == []


def test_a_bias_before_batchnorm_is_not_reported() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    images = torch.rand(16, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    report = check(model, (images, data()[1]), classes, optimizer=torch.optim.SGD(model.parameters(), lr=1e-3))
    assert report.findings == []
