"""Hearing a module's call without a hook: several listeners, in any order, and what was compiled meanwhile."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ocrlab.debug.instruments.compiled_modules import is_compiled
from ocrlab.debug.recorder import call_hooks
from ocrlab.debug.recorder.manual_loop import recording


def listener(said: list[str], name: str):
    def around(inner):
        def called(*args, **kwargs):
            said.append(name)
            return inner(*args, **kwargs)

        return called

    return around


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_two_listeners_leave_in_any_order_and_nothing_stays(order):
    net, said = nn.Linear(2, 2), []
    leave = {name: call_hooks.listen(net, listener(said, name)) for name in "ab"}
    x = torch.ones(1, 2)
    expected = nn.functional.linear(x, net.weight, net.bias)
    assert torch.equal(net(x), expected) and said == ["b", "a"]
    said.clear()
    leave[order[0]]()
    net(x)
    assert order[1] in said
    leave[order[1]]()
    said.clear()
    assert torch.equal(net(x), expected) and not said
    assert net._compiled_call_impl is None


def test_what_is_compiled_meanwhile_stays_and_is_told():
    net, said = nn.Linear(2, 2), []
    leave = call_hooks.listen(net, listener(said, "a"))
    assert not is_compiled(net)
    net.compile(backend="eager")
    ours = net._compiled_call_impl
    leave()
    assert net._compiled_call_impl is ours and is_compiled(net)


def test_a_module_with_a_call_of_its_own_has_no_room():
    class Own(nn.Linear):
        def __call__(self, *args):
            return super().__call__(*args) + 1

    assert call_hooks.listen(Own(1, 1), listener([], "a")) is None


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
