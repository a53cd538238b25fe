"""Both paths of the DB loss against the plain top-k formula, and what the device path must never do."""

import pytest
import torch
from torch.nn.functional import binary_cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

from ocrlab.errors import OcrlabError, ShapeError
from ocrlab.losses import db_loss as db_loss_module
from ocrlab.losses.db_loss import TargetMaps, db_loss

WEIGHTS = (5.0, 1.0, 10.0)
PATHS = {"device": db_loss_module.on_device, "cpu": db_loss_module.on_cpu}


def page(dtype=torch.float64, size=96, text=0.12, valid=0.9, seed=0):
    g = torch.Generator().manual_seed(seed)
    shape = (2, 1, size, size)
    x = (torch.randn(shape, generator=g, dtype=torch.float64) * 3).to(dtype).requires_grad_()
    y = torch.randn(shape, generator=g, dtype=torch.float64).to(dtype).requires_grad_()
    shrink, mask, border, border_mask = (torch.rand(shape, generator=g, dtype=torch.float64) for _ in range(4))
    maps = ((shrink < text), (mask < valid), 0.3 + 0.4 * border, (border_mask < 0.3))
    return x, y, TargetMaps(*(m.to(torch.float32 if dtype != torch.float64 else dtype) for m in maps))


def plain(x, y, t, ratio=3.0):
    """The published formulas, written down as they stand."""
    p, threshold = x.sigmoid(), y.sigmoid()
    pixel = binary_cross_entropy(p, t.shrink_map, reduction="none")
    positive, negative = t.shrink_map * t.shrink_mask, (1 - t.shrink_map) * t.shrink_mask
    k = int(min(negative.sum(), positive.sum() * ratio))
    hard = (pixel * negative).flatten().topk(k)[0].sum()
    bce = ((pixel * positive).sum() + hard) / (positive.sum() + k + 1e-6)
    binary = torch.sigmoid(50 * (p - threshold))
    dice = 1 - 2 * (binary * positive).sum() / ((binary * t.shrink_mask).sum() + positive.sum() + 1e-6)
    l1 = ((threshold - t.threshold_map).abs() * t.threshold_mask).sum() / t.threshold_mask.sum()
    return WEIGHTS[0] * bce + WEIGHTS[1] * dice + WEIGHTS[2] * l1


@pytest.mark.parametrize("text", [0.02, 0.12, 0.6])
@pytest.mark.parametrize("path", PATHS)
def test_equal_to_the_plain_formula(path, text):
    """In float64 the formula itself; in float32 no farther from it than rounding."""
    x, y, t = page(text=text)
    want = plain(x, y, t)
    exact = torch.autograd.grad(want, (x, y))
    for dtype, close in ((torch.float64, 1e-6), (torch.float32, 2e-6)):
        a, b = (v.detach().to(dtype).requires_grad_() for v in (x, y))
        got = PATHS[path](a, b, TargetMaps(*(m.to(dtype) for m in t)), WEIGHTS, 3.0).total
        assert abs(float(got.detach() - want.detach())) <= close * abs(float(want.detach()))
        for g, h in zip(torch.autograd.grad(got, (a, b)), exact, strict=True):
            assert float((g - h).norm()) <= close * float(h.norm())


@pytest.mark.parametrize("path", PATHS)
def test_soft_maps_weigh_value_and_gradient_alike(path):
    """A pixel that is 0.3 text is 0.7 of a hard negative, in the value as in its gradient."""
    x, y, t = page(torch.float64)
    t = t._replace(shrink_map=torch.rand(t.shrink_map.shape, generator=torch.Generator().manual_seed(1)).double())
    want = plain(x, y, t)
    exact = torch.autograd.grad(want, x)[0]
    a, b = (v.detach().float().requires_grad_() for v in (x, y))
    got = PATHS[path](a, b, TargetMaps(*(m.float() for m in t)), WEIGHTS, 3.0).total
    assert got.item() == pytest.approx(want.item(), rel=1e-4)
    assert float((torch.autograd.grad(got, a)[0] - exact).norm()) < 0.01 * float(exact.norm())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("soft", [False, True])
def test_the_two_paths_agree(dtype, soft):
    x, y, t = page(dtype)
    if soft:
        t = t._replace(shrink_map=torch.rand(t.shrink_map.shape, generator=torch.Generator().manual_seed(1)).to(t[0]))
    a, b = (path(x, y, t, WEIGHTS, 3.0) for path in PATHS.values())
    for got, want in zip(a, b, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
    for g, h in zip(torch.autograd.grad(a.total, (x, y)), torch.autograd.grad(b.total, (x, y)), strict=True):
        assert g.dtype == h.dtype == dtype
        torch.testing.assert_close(g, h, rtol=2e-2 if dtype.itemsize == 2 else 1e-4, atol=1e-5)


def test_a_second_derivative_is_right_or_refused_but_never_zero():
    """A penalty on gradients: where the compiled loops build no graph, it would silently add nothing."""
    x, y, t = page(torch.float32)
    with pytest.raises(OcrlabError, match=r"no second derivative.*create_graph=True.*float64"):
        torch.autograd.grad(db_loss(x, y, t).total, x, create_graph=True)
    x, y, t = page(torch.float64)
    (first,) = torch.autograd.grad(db_loss(x, y, t).total, x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), x)
    assert float(second.norm()) > 0


@pytest.mark.parametrize("path", PATHS)
def test_gradient_by_finite_differences(path):
    x, y, t = page(size=8)
    f = lambda a, b: PATHS[path](a, b, t, WEIGHTS, 3.0).total  # noqa: E731
    assert torch.autograd.gradcheck(f, (x, y), eps=1e-7, atol=1e-5)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("text", "valid"), [(0.0, 1.0), (0.0, 0.0), (0.3, 0.0), (1.0, 1.0)])
def test_finite_on_pages_without_text_or_with_all_ignored(path, dtype, text, valid):
    x, y, t = page(dtype, text=text, valid=valid)
    if valid == 0:
        t = t._replace(threshold_mask=torch.zeros_like(t.threshold_mask))
    parts = PATHS[path](x, y, t, WEIGHTS, 3.0)
    parts.total.backward()
    assert all(bool(p.isfinite()) for p in parts)
    assert x.grad.isfinite().all()
    assert y.grad.isfinite().all()
    if text == 0 and valid == 1:
        assert (x.grad > 0).any(), "a page without text must still teach that there is none"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("which", [0, 1])
def test_a_logit_that_is_not_a_number_shows_in_the_total(path, which):
    x, y, t = page(torch.float32)
    spoilt = [v.detach().clone() for v in (x, y)]
    t.shrink_mask[0, 0, 5, 5] = t.threshold_mask[0, 0, 5, 5] = 1
    spoilt[which][0, 0, 5, 5] = float("nan")
    assert PATHS[path](*spoilt, t, WEIGHTS, 3.0).total.isnan()


@pytest.mark.parametrize("size", [1, 31, 33])
def test_maps_of_any_size_and_memory_layout(size):
    x, y, t = page(torch.float32, size=size)
    want = db_loss_module.on_device(x, y, t, WEIGHTS, 3.0).total
    torch.testing.assert_close(db_loss_module.on_cpu(x, y, t, WEIGHTS, 3.0).total, want, rtol=1e-5, atol=1e-6)
    turned = [v.transpose(2, 3) for v in (x, y, *t)]
    got = db_loss_module.on_cpu(turned[0], turned[1], TargetMaps(*turned[2:]), WEIGHTS, 3.0).total
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("k", [0, 1, 2, 37, 99, 100])
def test_kth_largest_is_exact(k):
    for dtype in (torch.float32, torch.float64):
        values = torch.rand(100, generator=torch.Generator().manual_seed(k), dtype=dtype).round(decimals=1)
        value = db_loss_module.kth_largest(values, torch.tensor(k))
        assert (values >= value).sum() == 0 if k == 0 else value == values.sort(descending=True)[0][k - 1]


class NoReadBack(TorchDispatchMode):
    """Fails on everything that makes the host wait for a device."""

    FORBIDDEN = ("_local_scalar_dense", "nonzero", "masked_select", "item", "is_nonzero", "equal", "unique")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().split("::")[1].split(".")[0]
        kwargs = kwargs or {}
        assert name not in self.FORBIDDEN, f"{func} reads a value back"
        if name == "_to_copy":
            assert kwargs.get("device") in (None, args[0].device), "a copy between devices"
        return func(*args, **kwargs)


def test_device_path_never_reads_a_value_back():
    x, y, t = page(torch.float32)
    with NoReadBack():
        db_loss_module.on_device(x, y, t, WEIGHTS, 3.0).total.backward()
    with pytest.raises(AssertionError, match="reads a value back"), NoReadBack():
        float(x.detach().sum())


@pytest.mark.slow
def test_device_path_compiles_without_a_break():
    torch._dynamo.reset()
    x, y, t = page(torch.float32)
    compiled = torch.compile(
        lambda a, b: db_loss_module.on_device(a, b, t, WEIGHTS, 3.0).total, fullgraph=True, backend="aot_eager"
    )
    got, want = compiled(x, y), db_loss_module.on_device(x, y, t, WEIGHTS, 3.0).total
    torch.testing.assert_close(got, want)
    for a, b in zip(torch.autograd.grad(got, (x, y)), torch.autograd.grad(want, (x, y)), strict=True):
        torch.testing.assert_close(a, b)


def test_public_entry_under_autocast_keeps_float32_sums():
    x, y, t = page(torch.float32)
    want = db_loss(x, y, t).total
    with torch.autocast("cpu", torch.bfloat16):
        got = db_loss(x, y, t).total
    assert torch.equal(got, want)


@pytest.mark.parametrize("spoil", [
    lambda x, y, t: (x[:, :, :-1], y, t),
    lambda x, y, t: (x, y, t._replace(shrink_mask=t.shrink_mask[:1])),
    lambda x, y, t: (x.squeeze(1), y, t),
    lambda x, y, t: (x.int(), y, t),
    lambda x, y, t: (x, y, t._replace(threshold_map=t.threshold_map.to("meta"))),
])  # fmt: skip
def test_the_door_shows_every_shape_dtype_and_device(spoil):
    x, y, t = spoil(*page(torch.float32))
    with pytest.raises(ShapeError) as caught:
        db_loss(x, y, t)
    for word in ("probability_logits", "threshold_mask", "torch.float32", "on cpu", "(2, 1, 96, 96)"):
        assert word in str(caught.value)
