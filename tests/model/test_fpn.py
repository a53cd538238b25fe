"""The two decoders have one contract: four levels in, one map at stride 4 out, made by `fusion`."""

from __future__ import annotations

import pytest
import torch

from ocrlab.model.dbnet import FPN, DBHead, K, Maps, UNet, conv_block

CHANNELS = (8, 16, 24, 40)


def levels(height: int = 64, width: int = 96) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    return [
        torch.randn(2, c, height // s, width // s, generator=g) for c, s in zip(CHANNELS, (4, 8, 16, 32), strict=True)
    ]


@pytest.mark.parametrize("decoder", [FPN, UNet])
def test_four_levels_become_a_single_map_at_stride_4(decoder):
    net = decoder(CHANNELS, 32).eval()
    assert net.out_channels == 16
    assert net(levels()).shape == (2, 16, 16, 24)


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


def test_conv_block_keeps_the_size():
    assert conv_block(3, 5)(torch.zeros(1, 3, 7, 9)).shape == (1, 5, 7, 9)


def test_head_goes_to_full_resolution_and_binary_is_the_steep_step_between_the_maps():
    maps = DBHead(16).eval()(torch.randn(2, 16, 8, 12))
    assert isinstance(maps, Maps)
    assert maps.probability.shape == (2, 1, 32, 48)
    torch.testing.assert_close(maps.binary, torch.sigmoid(K * (maps.probability - maps.threshold)))
