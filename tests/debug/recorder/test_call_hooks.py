"""A look at the calls of a user's model never raises into them."""

from __future__ import annotations

import torch
from torch import nn

from ocrlab.debug.recorder import call_hooks
from ocrlab.debug.recorder.manual_loop import recording


def test_a_look_that_fails_is_over_and_the_call_goes_on(capsys):
    class Looks:
        failed = closed = False

        @call_hooks.harmless
        def look(self):
            raise ZeroDivisionError("of the recorder")

        def close(self):
            self.closed = True

    looks = Looks()
    looks.look()
    looks.look()
    assert looks.failed and looks.closed
    said = capsys.readouterr().err
    assert said == "ocrlab: flight recorder: looks are no longer looked at: ZeroDivisionError: of the recorder\n"


def test_gradients_of_each_sample_by_vmap_are_not_disturbed(tmp_path, capsys):
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def loss(weights, x, y):
        return nn.functional.cross_entropy(torch.func.functional_call(net, weights, (x[None],)), y[None])

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
    with recording(tmp_path, net, optimizer) as rec:
        for x, y in rec.batches([(torch.randn(8, 4), torch.randint(0, 2, (8,)))] * 3):
            for name, gradient in each(dict(net.named_parameters()), x, y).items():
                net.get_parameter(name).grad = gradient.mean(0)
            optimizer.step()
    assert "no longer" not in capsys.readouterr().err
