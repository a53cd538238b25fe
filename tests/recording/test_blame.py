import pytest
import torch
from torch.utils.data import default_collate

from ocrlab.recording.blame import unfit

SMALL, LARGE = torch.ones(2), torch.ones(3)


@pytest.mark.parametrize(
    ("samples", "wanted"),
    [
        ([SMALL, SMALL, LARGE, SMALL], [2]),
        ([LARGE, SMALL, SMALL, SMALL], [0]),
        ([LARGE, SMALL, LARGE, SMALL, SMALL], [0, 2]),
        ([SMALL, None, SMALL], [1]),
        ([SMALL, LARGE], []),
        ([LARGE, SMALL, LARGE, SMALL], []),
        ([None, None], []),
        ([SMALL, SMALL], []),
    ],
)
def test_the_samples_that_fit_to_no_majority_are_blamed(samples, wanted):
    assert unfit(default_collate, samples) == wanted


def test_what_draws_is_tried_with_the_same_numbers():
    def collate(samples):
        if torch.rand(()) < 0.5 or len({len(sample) for sample in samples}) > 1:
            raise ValueError
        return torch.stack(samples)

    seed = next(seed for seed in range(99) if torch.manual_seed(seed) and torch.rand(()) > 0.5)
    torch.manual_seed(seed)
    assert unfit(collate, [SMALL, LARGE, SMALL]) == [1]
