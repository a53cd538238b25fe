"""Indices and targets that operators cannot take are found before they run."""

from __future__ import annotations

import torch

from ocrlab.debug.replay.tracing import index_checks as traced_ranges


def test_each_operator_has_its_limits() -> None:
    scores, truth = torch.zeros(2, 5), torch.tensor([1, 5])
    violation = traced_ranges.find_out_of_range("aten::nll_loss_forward", [scores, truth, None, 1, -100], {})
    assert violation is not None and (violation.index, violation.value, violation.allowed) == ((1,), 5.0, "0 to 4")
    assert traced_ranges.find_out_of_range("aten::nll_loss_forward", [scores, truth, None, 1, 5], {}) is None
    violation = traced_ranges.find_out_of_range("aten::embedding", [torch.zeros(3, 2), torch.tensor([[0, -1]])], {})
    assert violation is not None and violation.index == (0, 1)
    assert traced_ranges.find_out_of_range("aten::index", [torch.zeros(3), [torch.tensor([-3, 2])]], {}) is None
    assert traced_ranges.find_out_of_range("aten::index", [torch.zeros(3), [torch.tensor([3])]], {}) is not None
    assert traced_ranges.find_out_of_range("aten::gather", [torch.zeros(2, 3), 1, torch.tensor([[3]])], {}) is not None
    violation = traced_ranges.find_out_of_range(
        "aten::binary_cross_entropy", [torch.ones(2), torch.tensor([0.5, 1.5])], {}
    )
    assert violation is not None and (violation.role, violation.allowed) == ("target", "0 to 1")
    assert traced_ranges.find_out_of_range("aten::add", [scores, scores], {}) is None


class OnDevice(torch.Tensor):
    """Stands for a tensor on a GPU: `cpu` gives a plain one."""

    def cpu(self, *_: object) -> torch.Tensor:
        return self.as_subclass(torch.Tensor)


def test_what_is_returned_lies_on_the_host() -> None:
    """After the operator a GPU's context is dead, and nothing can be read from it any more."""
    index = torch.tensor([[0, 7]]).as_subclass(OnDevice)
    violation = traced_ranges.find_out_of_range("aten::embedding", [torch.zeros(3, 2), index], {})
    assert violation is not None and violation.index == (0, 1)
    assert type(violation.tensor) is torch.Tensor and type(violation.mask) is torch.Tensor
