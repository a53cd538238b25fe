"""What is given away: small, the same bytes every time, nothing private; and its card."""

import hashlib
from pathlib import Path

import pytest
import torch

from ocrlab.errors import CheckpointError
from ocrlab.inference import Detector, checkpoint
from ocrlab.inference.release_checkpoint import FIGURES, LEVELS, card, halved, pack

MEASURED = {f"{figure}@{at}": 0.9 - 0.01 * i for i, at in enumerate(LEVELS) for figure in FIGURES} | {"pages": 63}


@pytest.fixture
def packed(tiny, tmp_path) -> Path:
    pack(tiny, tmp_path / "receipts.ckpt")
    return tmp_path / "receipts.ckpt"


def test_half_the_size_and_nearly_the_same_weights(packed, tiny):
    assert packed.stat().st_size < 0.55 * tiny.stat().st_size
    before, after = (checkpoint.load_detector(path)[0].state_dict() for path in (tiny, packed))
    for name, weight in before.items():
        assert after[name].dtype == weight.dtype, "read into what the network computes in"
        assert torch.allclose(after[name], weight, rtol=2**-11, atol=2**-24), name
    stored = torch.load(packed, weights_only=True)["detector"]
    assert stored["encoder.stem.0.weight"].dtype == torch.float16
    assert stored["encoder.stem.1.running_var"].dtype == torch.float32


def test_nothing_private_is_inside(packed):
    assert b"secret" not in packed.read_bytes()
    about = checkpoint.load(packed)["ocrlab"]
    assert about["metrics"] == {"hmean@0.5": 0.25, "pages": 3.0}
    assert (about["config"]["encoder"], about["config"]["width"], about["step"]) == ("resnet18_slim", 16, 7)


def test_the_same_bytes_every_time(packed, tiny, tmp_path):
    pack(tiny, tmp_path / "again.ckpt")
    assert (tmp_path / "again.ckpt").read_bytes() == packed.read_bytes()


def test_the_card_says_what_was_measured(packed):
    robust = {"as they are": 0.9, "JPEG 20": 0.85}
    text = card(packed, MEASURED, robust, "ocrlab train encoder=resnet18_slim", 38, "2 cores, no GPU")
    assert hashlib.sha256(packed.read_bytes()).hexdigest() in text
    for line in (
        "CC BY 4.0",
        "Huang",
        "63 receipts",
        "ocrlab train encoder=resnet18_slim",
        "38 minutes",
        "resnet18_slim",
    ):
        assert line in text
    assert "| IoU 0.7 | 0.890 | 0.890     | 0.890  |" in text
    assert "| JPEG 20     | 0.850     | -0.050 |" in text
    count = sum(weight.numel() for weight in Detector.load(packed).model.parameters())
    assert f"{count:,} parameters" in text
    assert "not measured" in card(packed, MEASURED, {}, "", 38, "")


def test_weights_that_overflow_are_refused():
    with pytest.raises(CheckpointError, match="half precision"):
        halved("head.weight", torch.full((2, 2), 7e4))
    assert halved("norm.running_var", torch.full((2,), 7e4)).dtype == torch.float32
