"""The facts of one tensor, against NumPy, on tensors of every kind and layout."""

import math
from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ocrlab.debug.instruments import tensor_facts
from ocrlab.debug.instruments.tensor_tree import dotted_tensors, tensors

KINDS = {
    "contiguous": lambda x: x, "channels_last": lambda x: x.to(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(1, 3), "sliced": lambda x: x[:, 1:, ::2, 3:],
    "expanded": lambda x: x[:, :1].expand(-1, 5, -1, -1), "one number": lambda x: x[0, 0, 0, 0],
}  # fmt: skip
TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool)


def figures(tensor: Tensor) -> tensor_facts.Figures:
    read = tensor_facts.values(tensor)
    assert isinstance(read, Tensor)
    return tensor_facts.figures_of(read)


def random_tensor(dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.randn(2, 3, 8, 9).relu() * 5).to(dtype)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_both_ways_of_looking_agree_with_numpy(kind: str, dtype: torch.dtype) -> None:
    tensor = KINDS[kind](random_tensor(dtype))
    truth = tensor.double().numpy()
    here, facts = figures(tensor), tensor_facts.facts(tensor)
    numbers = tensor_facts.device_figures(tensor).tolist()
    again, first = tensor_facts.unpack_figures(numbers, tensor.shape, tensor.stride())
    for name, want in (("min", truth.min()), ("max", truth.max()), ("mean", truth.mean()), ("std", truth.std())):
        assert getattr(here, name) == pytest.approx(want, rel=1e-4, abs=1e-6)
        assert getattr(again, name) == pytest.approx(want, rel=1e-3, abs=1e-3)
    assert here.zeros == again.zeros == (truth == 0).sum() and here.count == again.count == truth.size
    assert (here.nan, here.inf, again.bad, first) == (0, 0, 0, None)
    assert (facts.shape, facts.dtype) == (truth.shape, str(dtype).removeprefix("torch."))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "one number"])
def test_the_first_bad_value_and_the_samples_with_bad_values(kind: str) -> None:
    tensor = KINDS[kind](random_tensor())
    tensor[1, 0, 2, 1] = math.nan
    tensor[1, 0, 3, 1] = -math.inf
    bad = tensor_facts.first_bad(tensor)
    truth = tensor.numpy()
    assert bad is not None
    assert bad.index == tuple(np.argwhere(~np.isfinite(truth))[0])
    assert bad.value == "NaN"
    assert bad.samples == {1: int((~np.isfinite(truth[1])).sum())}
    assert (bad.nan, bad.inf) == (np.isnan(truth).sum(), np.isinf(truth).sum())
    here = figures(tensor)
    assert (here.nan, here.inf) == (bad.nan, bad.inf)
    assert here.mean == pytest.approx(truth[np.isfinite(truth)].mean(), rel=1e-4)
    assert here.std == pytest.approx(truth[np.isfinite(truth)].std(), rel=1e-4)
    numbers = tensor_facts.device_figures(tensor).tolist()
    again, first = tensor_facts.unpack_figures(numbers, tensor.shape, tensor.stride())
    assert first is not None and not math.isfinite(tensor[first]) and first[0] == 1
    assert (again.nan, again.inf) == (bad.nan, bad.inf) and math.isnan(again.mean)


def test_a_large_tensor_is_looked_at_in_pieces_and_loses_nothing() -> None:
    tensor = torch.randn(3 * tensor_facts.CHUNK + 17) * 0.01 + 1e4  # of squares in float32 the deviation were 0 or 3
    tensor[-1] = math.nan
    here, truth = figures(tensor), tensor[:-1].double()
    assert here.std == pytest.approx(float(truth.std(correction=0)), rel=1e-3)
    assert here.mean == pytest.approx(float(truth.mean()), rel=1e-7) and here.nan == 1


def test_large_values_do_not_overflow() -> None:
    here = figures(torch.tensor([3e38, -3e38, 1e38]))
    assert here.bad == 0 and here.std == pytest.approx(np.std([3e38, -3e38, 1e38]), rel=1e-3)
    assert figures(torch.tensor([1e300, 3e300, -1e300], dtype=torch.float64)).mean == pytest.approx(1e300)
    here = figures(torch.tensor([1.5e308, -1.5e308, float("inf")], dtype=torch.float64))
    assert (here.inf, here.mean, here.max) == (1, 0.0, 1.5e308)
    assert figures(torch.tensor([65504.0, -65504.0], dtype=torch.float16)).std == pytest.approx(65504)
    assert tensor_facts.first_bad(torch.tensor([3e38, 3e38])) is None


def test_below_a_gradient_vmap_still_allows_no_reading() -> None:
    why: list[str] = []

    def loss(x: Tensor) -> Tensor:
        why.append(str(tensor_facts.values(x)))
        return x.square().sum()

    torch.func.vmap(torch.func.grad(loss))(torch.ones(3, 2))
    torch.func.grad(loss)(torch.ones(2))
    assert "vmap" in why[0]
    assert "vmap" not in why[1]


def test_what_cannot_be_read_says_why() -> None:
    assert "empty" in str(tensor_facts.values(torch.empty(3, 0)))
    assert "meta" in str(tensor_facts.values(torch.empty(3, 4, device="meta")))
    assert tensor_facts.facts(torch.empty(3, 4, device="meta")).shape == (3, 4)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("make", "mean"), [
    (lambda: torch.tensor([[0.0, 2.0], [0.0, 4.0]]).to_sparse(), 3.0),
    (lambda: torch.tensor([[0.0, 2.0], [0.0, 4.0]]).to_sparse_csr(), 3.0),
    (lambda: torch.tensor([1 + 3j, 1 + 3j]).conj(), -1.0),
    (lambda: torch.ones(2, 3).to_mkldnn(), 1.0),
    (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged), 1.0),
    (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), 1.0),
    (lambda: torch.nn.Parameter(torch.ones(2)), 1.0),
    (lambda: torch.ones(4).to(torch.float8_e4m3fn), 1.0),
    (lambda: torch.quantize_per_tensor(torch.ones(4), 0.5, 0, torch.quint8), 1.0),
], ids=["coo", "csr", "complex", "mkldnn", "jagged", "nested", "parameter", "float8", "quantized"])  # fmt: skip
def test_unusual_tensors(make, mean: float) -> None:
    tensor = make()
    assert figures(tensor).mean == pytest.approx(mean)
    assert tensor_facts.first_bad(tensor) is None


def test_looking_draws_nothing_and_leaves_no_trace() -> None:
    tensor = random_tensor().requires_grad_()
    before = torch.get_rng_state()
    figures(tensor)
    tensor_facts.first_bad(tensor)
    assert torch.equal(before, torch.get_rng_state())
    assert tensor._version == 0 and tensor.grad is None


@dataclass
class Out:
    logits: Tensor
    name: str


def test_tensors_come_with_their_path() -> None:
    t = torch.zeros(1)
    batch = {"loss": t, "more": [t, (t, "text")], "out": Out(t, "x"), "pair": namedtuple("Pair", "a b")(t, 3)}
    paths = ["['loss']", "['more'][0]", "['more'][1][0]", "['out'].logits", "['pair'].a"]
    assert [path for path, _ in tensors(batch, "")] == paths
    assert [name for name, _ in dotted_tensors(batch)] == ["loss", "more.0", "more.1.0", "out.logits", "pair.a"]
    packed = nn.utils.rnn.pack_sequence([torch.ones(2, 1)])
    expected = ["batch", "batch", "batch.data (packed)"]
    assert [name for name, _ in (*tensors(t), *dotted_tensors(t), *tensors(packed))] == expected
