"""Hearing a module's call without a hook: several listeners, in any order, and what was compiled meanwhile."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ocrlab.recording import hearing
from ocrlab.trace.compiled import is_compiled


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
    leave = {name: hearing.listen(net, listener(said, name)) for name in "ab"}
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
    leave = hearing.listen(net, listener(said, "a"))
    assert not is_compiled(net)
    net.compile(backend="eager")
    ours = net._compiled_call_impl
    leave()
    assert net._compiled_call_impl is ours and is_compiled(net)


def test_a_module_with_a_call_of_its_own_has_no_room():
    class Own(nn.Linear):
        def __call__(self, *args):
            return super().__call__(*args) + 1

    assert hearing.listen(Own(1, 1), listener([], "a")) is None
