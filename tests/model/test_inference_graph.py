"""The inference form of every encoder x decoder computes the same map, from the weights of that moment."""

import copy
import gc
import itertools
import weakref

import numpy as np
import pytest
import torch
from torch import nn

from ocrlab.errors import ShapeError
from ocrlab.model.dbnet import MEAN, Detector
from ocrlab.model.inference_graph import Convolution, build, fused

ENCODERS = ("resnet18_slim", "resnet18", "resnet50", "mobilenet_v3_large")
PAIRS = list(itertools.product(ENCODERS, ("fpn", "unet")))
MOST = [pytest.param(pair, marks=pytest.mark.slow if pair[0] == "resnet50" else ()) for pair in PAIRS]


def trained(encoder: str, decoder: str) -> Detector:
    """Return a detector whose BatchNorms have done something, with logits of a trained one's size."""
    torch.manual_seed(0)
    model = Detector(encoder, decoder, width=32).eval()
    with torch.no_grad():
        for norm in model.modules():
            if isinstance(norm, nn.BatchNorm2d):
                norm.weight.uniform_(0.5, 1.5)
                norm.bias.normal_(0, 0.1)
                norm.momentum = None  # the statistics of the one batch below
        model.train()(pixels(batch=2))
        model.eval()
        logits = model(pixels()).probability_logits
        model.head.probability[-1].weight.mul_(3 / logits.std())
    return model


def pixels(height: int = 96, width: int = 64, batch: int = 1) -> torch.Tensor:
    g = torch.Generator().manual_seed(height)
    return torch.randint(0, 256, (batch, 3, height, width), dtype=torch.uint8, generator=g)


@pytest.fixture(scope="module")
def built() -> dict[tuple[str, str], Detector]:
    return {pair: trained(*pair) for pair in PAIRS}


def exact(model: Detector, images: torch.Tensor) -> torch.Tensor:
    """Return the map of the unfused detector, all in float64."""
    wide = copy.deepcopy(model).double()
    x = (images.double() - wide.mean) / wide.std
    with torch.inference_mode():
        return wide.head.probability(wide.decoder(wide.encoder(x))).sigmoid()


@pytest.mark.parametrize("pair", MOST, ids="+".join)
def test_it_is_the_same_function(built, pair):
    """In float64 to the last digits; in float32 no farther from that than the detector itself is."""
    model = built[pair]
    wide, quick = build(model, torch.float64), fused(model, bf16=False)
    for images in (pixels(), pixels(32, 96, batch=2).float()):
        want = exact(model, images)
        assert float(want.std()) > 0.05, "a map of one value would prove nothing"
        with torch.inference_mode():
            assert float((wide.layers(centred(images)).sigmoid() - want).abs().max()) < 1e-9
            got = quick.probability(images)
            difference = float((model.probability(images) - want).abs().max())
        assert got.dtype == torch.float32
        assert got.shape == want.shape
        assert float((got - want).abs().max()) < 1e-5 + 3 * difference


def centred(images: torch.Tensor) -> torch.Tensor:
    return images.double() - torch.tensor(MEAN).view(1, 3, 1, 1)


@pytest.mark.parametrize("pair", PAIRS[:4], ids="+".join)
def test_bf16_is_no_farther_off_than_autocast(built, pair):
    model, quick, images = built[pair], fused(built[pair], bf16=True), pixels()
    with torch.inference_mode():
        want = model.probability(images)
        off = (quick.probability(images) - want).abs().mean()
        with torch.autocast("cpu", torch.bfloat16):
            difference = (model.probability(images) - want).abs().mean()
    assert float(off) < 1.5 * float(difference) + 1e-3


def test_padding_means_the_mean_colour_as_before(built):
    """A page of nothing but the mean colour is all zeros inside, as the padding of the convolutions is."""
    model = built["resnet18", "fpn"]
    images = torch.tensor(MEAN).view(1, 3, 1, 1).expand(1, 3, 64, 64)
    with torch.inference_mode():
        got, want = fused(model, bf16=False).probability(images), model.probability(images)
    assert float((got - want).abs().max()) < 1e-4


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_nothing_but_convolutions_pooling_and_upsampling_is_left(built, name):
    layers = fused(built[name, "fpn"], bf16=False).layers
    left = {type(module) for module in layers.modules() if not list(module.children())}
    assert not any(issubclass(kind, nn.BatchNorm2d) for kind in left)
    called = [node for node in layers.graph.nodes if node.op == "call_function"]
    assert not [node for node in called if "add" in node.name], "sums belong to convolutions"
    convolutions = [module for module in layers.modules() if isinstance(module, Convolution)]
    assert sum(c.relu for c in convolutions) >= 17
    assert not any("threshold" in name for name, _ in layers.named_modules())


def test_without_onednn_plain_convolutions_do_the_same(built, monkeypatch):
    model, images = built["resnet18", "fpn"], pixels()
    packed = fused(model, bf16=False)
    monkeypatch.setattr("ocrlab.model.inference_graph.packable", lambda _kind: False)
    plain = fused(model, bf16=False)
    assert not any(m.packed is not None for m in plain.layers.modules() if isinstance(m, Convolution))
    with torch.inference_mode():
        assert float((plain.probability(images) - packed.probability(images)).abs().max()) < 1e-4


def test_the_detector_and_its_fused_form_stay_as_they_are(built):
    model = copy.deepcopy(built["resnet18", "fpn"]).train()
    before = copy.deepcopy(model.state_dict())
    quick = fused(model, bf16=False)
    with torch.inference_mode():
        first = quick.probability(pixels())
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with torch.no_grad():
        model.head.probability[-1].bias.add_(1)
    with torch.inference_mode():
        assert torch.equal(quick.probability(pixels()), first)


def test_its_weights_go_with_it_at_once():
    """Training makes one in each validation: what waits for Python to look for cycles is a leak of 20 MB each."""
    model = trained("resnet18_slim", "fpn")
    mine = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    gc.collect()
    gc.disable()
    try:
        before = {id(thing) for thing in gc.get_objects()}
        network = fused(model, bf16=False)
        references = [weakref.ref(part) for part in network.layers.modules()]
        del network
        new = [t for t in gc.get_objects() if id(t) not in before and isinstance(t, torch.Tensor) and id(t) not in mine]
        assert sum(tensor.numel() for tensor in new) == 0
        assert not any(part() for part in references)
    finally:
        gc.enable()


def test_weights_that_are_not_finite_are_named():
    broken = Detector("resnet18_slim", width=32)
    with torch.no_grad():
        broken.encoder.layer1[0].conv1.weight[0, 0, 0, 0] = np.nan
    with pytest.raises(ShapeError, match=r"1 of 9216 in encoder\.layer1\.0\.conv1\.weight"):
        fused(broken, bf16=False)
