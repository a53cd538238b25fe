"""The contract that every encoder x decoder goes through."""

import itertools
import shutil

import pytest
import torch
import torchvision.models as zoo

from ocrlab.errors import ShapeError, WeightsError
from ocrlab.losses.db_loss import TargetMaps, db_loss
from ocrlab.model import encoder as encoders
from ocrlab.model.dbnet import DBHead, Detector, K, Maps
from ocrlab.model.decoders import FPN, UNet

ENCODERS = ("resnet18_slim", "resnet18", "resnet34", "resnet50", "mobilenet_v3_large")
DECODERS = ("fpn", "unet")
PAIRS = list(itertools.product(ENCODERS, DECODERS))
DEEP = ("resnet34", "resnet50")  # of the same blocks as the others, and four times as long to compile
MOST = [pytest.param(pair, marks=pytest.mark.slow) if pair[0] in DEEP else pair for pair in PAIRS]
QUICK = ("resnet18_slim", "fpn"), ("mobilenet_v3_large", "unet")  # of what is traced or compiled
FEW = [pair if pair in QUICK else pytest.param(pair, marks=pytest.mark.slow) for pair in PAIRS]


@pytest.fixture(scope="module")
def built() -> dict[tuple[str, str], Detector]:
    torch.manual_seed(0)
    return {pair: Detector(*pair, width=64) for pair in PAIRS}


def images(height: int = 64, width: int = 96, batch: int = 2) -> torch.Tensor:
    return torch.randint(0, 256, (batch, 3, height, width), dtype=torch.uint8)


@pytest.mark.parametrize("pair", MOST, ids="+".join)
def test_forward_backward_reaches_every_parameter(built, pair):
    model = built[pair].train()
    maps = model(images())
    assert all(m.shape == (2, 1, 64, 96) for m in maps)
    truth = torch.zeros(2, 1, 64, 96)
    truth[:, :, 10:30, 10:60] = 1
    ones = torch.ones_like(truth)
    db_loss(*maps, TargetMaps(truth, ones, 0.3 + 0.4 * truth, ones)).total.backward()
    silent = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    dead = [n for n, p in model.named_parameters() if p.grad is not None and not p.grad.any() and "bias" not in n]
    model.zero_grad()
    assert (silent, dead) == ([], [])


@pytest.mark.parametrize("pair", MOST, ids="+".join)
def test_it_begins_by_saying_that_there_is_no_text(built, pair):
    with torch.no_grad():
        maps = built[pair].train()(images())
    assert maps.probability.mean() == pytest.approx(0.12, abs=0.06)
    assert maps.binary.mean() < 0.05  # half of it where both begin at a half
    assert maps.threshold.mean() == pytest.approx(0.3, abs=0.1)


@pytest.mark.parametrize("pair", PAIRS, ids="+".join)
def test_shapes_table_is_what_hooks_see(built, pair):
    model = built[pair].eval()
    shapes = {}
    names = [name for name, _ in model.shapes(64, 96)]
    hooks = [
        model.get_submodule(n).register_forward_hook(lambda _m, _i, out, n=n: shapes.update({n: tuple(out.shape[1:])}))
        for n in names
    ]
    with torch.no_grad():
        model(images())
    for hook in hooks:
        hook.remove()
    assert shapes == dict(model.shapes(64, 96))
    assert "decoder.fusion" in shapes


@pytest.mark.parametrize("pair", PAIRS, ids="+".join)
def test_odd_sizes_are_refused_by_name_or_letterboxed(built, pair):
    model = built[pair].eval()
    with pytest.raises(ShapeError, match=r"Image is 97 x 61.*multiples of 32.*letterbox=True or pad to 128 x 64"):
        model(images(61, 97))
    with torch.no_grad():
        maps = model(images(61, 97), letterbox=True)
    assert all(m.shape == (2, 1, 61, 97) for m in maps)


@pytest.mark.parametrize("pair", MOST, ids="+".join)
def test_bf16_and_channels_last_stay_close(built, pair):
    model = built[pair].eval()
    x = images()
    with torch.no_grad():
        want = model(x).probability
        with torch.autocast("cpu", torch.bfloat16):
            got = model(x.to(memory_format=torch.channels_last)).probability
    assert got.isfinite().all()
    assert (got - want).abs().mean() < 0.02


@pytest.mark.parametrize("pair", FEW, ids="+".join)
def test_export_gives_the_same_maps(built, pair):
    model = built[pair].eval()
    x = images()
    program = torch.export.export(model, (x,)).module()
    with torch.no_grad():
        for got, want in zip(program(x), model(x), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "pair", FEW[:1] + [pytest.param(pair, marks=pytest.mark.slow) for pair in PAIRS[1:]], ids="+".join
)
def test_compiles_without_a_break(built, pair):
    torch._dynamo.reset()
    model = built[pair].eval()
    compiled = torch.compile(model, fullgraph=True, backend="eager")  # the graph; code is generated below
    x = images()
    with torch.no_grad():
        for got, want in zip(compiled(x), model(x), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("cc") or shutil.which("gcc")), reason="inductor needs a C compiler")
def test_compiled_code_gives_the_same_maps(built):
    torch._dynamo.reset()
    model = built["resnet18", "fpn"].eval()
    x = images()
    with torch.no_grad():
        for got, want in zip(torch.compile(model, fullgraph=True)(x), model(x), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("bad", "text"), [
    (torch.zeros(3, 64, 64), r"shape \(3, 64, 64\)"),
    (torch.zeros(1, 1, 64, 64), r"shape \(1, 1, 64, 64\)"),
    (torch.zeros(1, 3, 64, 64, dtype=torch.int64), "dtype torch.int64"),
    (torch.zeros(1, 3, 0, 64), "multiples of 32"),
])  # fmt: skip
def test_bad_input_is_named(built, bad, text):
    with pytest.raises(ShapeError, match=text):
        built["resnet18", "fpn"](bad)


def test_weights_that_cannot_be_fetched_name_the_option(monkeypatch, tmp_path):
    def refuse(*_args, **_kwargs):
        raise OSError("no route to host")

    monkeypatch.setattr(torch.hub, "download_url_to_file", refuse)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    with pytest.raises(WeightsError, match=r"resnet18 could not be fetched.*no route to host.*weights=null"):
        encoders.build("resnet18", weights="imagenet")


def test_weights_from_a_file_are_used(monkeypatch, tmp_path):
    torch.manual_seed(1)
    state = zoo.resnet18().state_dict()
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    torch.save(state, folder / zoo.ResNet18_Weights.DEFAULT.url.rsplit("/", 1)[1])
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    loaded = encoders.build("resnet18", weights="imagenet")
    assert torch.equal(loaded.layer4[1].conv2.weight, state["layer4.1.conv2.weight"])


def test_a_network_of_its_own_is_torchvisions():
    theirs = encoders.ResNetEncoder(zoo.resnet18())
    ours = encoders.ResNetEncoder(encoders.ResNet18(encoders.CHANNELS["resnet18"]))
    ours.load_state_dict(theirs.state_dict())
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert all(map(torch.equal, ours(x := torch.rand(2, 3, 64, 64)), theirs(x)))


def test_the_slim_encoder_has_no_weights_to_fetch():
    with pytest.raises(WeightsError, match=r"no ImageNet weights for resnet18_slim.*encoder=resnet18"):
        encoders.build("resnet18_slim", weights="imagenet")


CHANNELS = (8, 16, 24, 40)


def levels(height: int = 64, width: int = 96) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    return [
        torch.randn(2, c, height // s, width // s, generator=g) for c, s in zip(CHANNELS, (4, 8, 16, 32), strict=True)
    ]


@pytest.mark.parametrize("decoder", [FPN, UNet])
def test_fusion_makes_the_output_and_every_level_matters(decoder):
    net = decoder(CHANNELS, 32).eval()
    outputs = []
    net.fusion.register_forward_hook(lambda _m, _i, out: outputs.append(out))
    inputs = [level.requires_grad_() for level in levels()]
    out = net(inputs)
    assert torch.equal(out, outputs[0])
    out.square().sum().backward()
    assert all(bool(level.grad.any()) for level in inputs)


def test_head_goes_to_full_resolution_and_binary_is_the_steep_step_between_the_maps():
    maps = DBHead(16).eval()(torch.randn(2, 16, 8, 12))
    assert isinstance(maps, Maps)
    assert maps.probability.shape == (2, 1, 32, 48)
    torch.testing.assert_close(maps.binary, torch.sigmoid(K * (maps.probability - maps.threshold)))
