"""A rank that was given another batch, or has done another number of them, is named by all."""

from __future__ import annotations

import pytest
import torch

from ocrlab.errors import DataError, RunError
from ocrlab.run_folder.launcher import Ranks
from ocrlab.training.distributed.stop_agreement import Agreement


class Done:
    """The words of a step that have arrived."""

    def wait(self) -> None:
        """They are there."""


def agreement_after(*rows: list[int]) -> Agreement:
    agreement = Agreement(Ranks(0, len(rows), 0, len(rows), "torchrun"))
    agreement.work, agreement.all = Done(), [torch.tensor(row) for row in rows]
    return agreement


PLAIN = [0, 0, 6, 2, 4, 3, 512, 512]


def test_words_of_any_rank_count_for_all():
    assert agreement_after(PLAIN, PLAIN).settle() == (0, False)
    assert agreement_after(PLAIN, [15, 0, *PLAIN[2:]]).settle() == (15, False)
    assert agreement_after([0, 1, *PLAIN[2:]], PLAIN).settle() == (0, True)
    assert Agreement(Ranks()).settle() == (0, False), "before the first step nobody has said anything"


def test_another_shape_is_that_of_the_few_and_of_two_that_of_the_second():
    odd = [*PLAIN[:5], 3, 480, 512]
    for rows, rank in (((PLAIN, PLAIN, odd), 2), ((odd, PLAIN, PLAIN), 0), ((PLAIN, odd), 1)):
        with pytest.raises(DataError, match=f"Rank {rank} was given a batch of another shape") as caught:
            agreement_after(*rows).settle()
        assert caught.value.rank == rank
        assert "(4, 3, 480, 512)" in str(caught.value)


def test_another_number_of_batches_is_distinguished_from_another_shape():
    with pytest.raises(RunError, match="Rank 1 has done another number of micro-batches. Given: 5. Needed: 6"):
        agreement_after(PLAIN, [0, 0, 5, *PLAIN[3:]]).settle()
