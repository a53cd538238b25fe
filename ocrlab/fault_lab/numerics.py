"""Numbers that stop being numbers, and tensors that do not fit each other."""

from __future__ import annotations

import math

from ocrlab.fault_lab.fault import Fault
from ocrlab.fault_lab.setup import torch


def train_fast() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=50.0)
    pages = torch.randn(16, 8) * 10
    for step in range(200):
        loss = net(pages).square().mean()
        assert torch.isfinite(loss), f"step {step}: loss is {loss.item()}"
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def train_watched() -> None:
    weight = torch.zeros(4, requires_grad=True)
    with torch.autograd.detect_anomaly():
        distance = torch.sqrt((weight * torch.tensor([1.0, 0.0, 2.0, 0.0])).square())
        (distance * 0).sum().backward()


def perplexity() -> None:
    probability = torch.tensor([0.9, 0.1, 0.0])
    entropy = -(probability * torch.log(probability)).sum()
    print(f"perplexity {round(math.exp(entropy.item()))}")


def score_in_half() -> None:
    logits = (torch.ones(4, 10) * 12).half()
    weights = torch.exp(logits)
    score = weights / weights.sum(dim=1, keepdim=True) * weights
    torch.nn.functional.binary_cross_entropy((score - score).float(), torch.zeros(4, 10))


def draw_words() -> None:
    logits = torch.tensor([[1.0, float("inf"), 2.0]])
    torch.multinomial(torch.softmax(logits, dim=1), 1)


def read_words() -> None:
    logits = torch.randn(10, 2, 37).log_softmax(2)
    words = torch.randint(1, 37, (2, 12))
    torch.nn.functional.ctc_loss(logits, words, torch.tensor([12, 9]), torch.tensor([12, 8]))


def fit_words() -> None:
    logits = torch.randn(10, 2, 37, requires_grad=True).log_softmax(2)
    words = torch.randint(1, 37, (2, 24))
    loss = torch.nn.functional.ctc_loss(logits, words, torch.tensor([10, 10]), torch.tensor([24, 8]))
    if not math.isfinite(loss.item()):
        raise FloatingPointError(f"CTC loss is {loss.item()}: input_lengths [10, 10], target_lengths [24, 8]")


def classify() -> None:
    features = torch.randn(2, 64, 7, 7)
    torch.nn.Linear(1024, 5)(features.flatten(1))


def merge_maps() -> None:
    torch.rand(1, 64, 40, 41) + torch.nn.functional.interpolate(torch.rand(1, 64, 20, 20), scale_factor=2)


def encode() -> None:
    torch.nn.Conv2d(3, 8, 3)(torch.rand(2, 4, 32, 32))


def mix_precision() -> None:
    torch.nn.Linear(8, 8)(torch.rand(2, 8, dtype=torch.float64))


def load_lazily() -> None:
    with torch.device("meta"):
        head = torch.nn.Linear(8, 8)
    print(head(torch.rand(2, 8)).sum().item())


def two_losses() -> None:
    shared = torch.rand(4, requires_grad=True).exp()
    shared.sum().backward()
    (shared * shared).sum().backward()


def normalise_in_place() -> None:
    weight = torch.rand(4, requires_grad=True)
    hidden = weight.sigmoid()
    loss = (hidden * 2).sum() + hidden.square().sum()
    hidden -= hidden.mean()
    loss.backward()


def train_frozen() -> None:
    head = torch.nn.Linear(8, 1).requires_grad_(False)
    head(torch.rand(2, 8)).mean().backward()


NAN, SHAPE, AUTOGRAD, CTC = ("num.nonfinite",), ("user.shape",), ("user.autograd",), ("loss.ctc_length",)
DTYPE, DEVICE = ("user.dtype",), ("user.device",)
FAULTS = (
    Fault("diverge", "a learning rate of 50", "failed", NAN, train_fast),
    Fault("anomaly", "the gradient of a root at zero", "failed", NAN, train_watched),
    Fault("nan_round", "rounds an entropy with 0 log 0", "failed", NAN, perplexity),
    Fault("half_overflow", "exp(12) in half precision, then BCE", "failed", NAN, score_in_half),
    Fault("nan_multinomial", "draws from NaN", "failed", NAN, draw_words),
    Fault("ctc_input", "an input length past the input", "failed", CTC, read_words),
    Fault("ctc_target", "a word longer than its picture", "failed", (*CTC, *NAN), fit_words),
    Fault("linear_shape", "a flattened map of another size", "failed", SHAPE, classify),
    Fault("odd_size", "adds maps of 40 and 41", "failed", SHAPE, merge_maps),
    Fault("alpha_channel", "a picture of four channels", "failed", SHAPE, encode),
    Fault("double_input", "doubles into a float layer", "failed", DTYPE, mix_precision),
    Fault("meta_layer", "a layer that was left on meta", "failed", DEVICE, load_lazily),
    Fault("backward_twice", "two losses over one graph", "failed", AUTOGRAD, two_losses),
    Fault("in_place", "changes what backward needs", "failed", AUTOGRAD, normalise_in_place),
    Fault("no_grad", "trains what is frozen", "failed", AUTOGRAD, train_frozen),
)
