"""Losses that are no finite number: of which pages, how many, and whether the weights are still finite.

Nothing is skipped: torch steps with whatever gradient there is. One that is NaN makes every weight NaN at once, as
clipping joins all gradients, and then the run ends. Where the loss alone is not finite, training goes on, and says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from ocrlab.errors import RunError
from ocrlab.run_folder.launcher import Ranks
from ocrlab.training.distributed.collectives import mean

SHOWN = 6  # pages that are named
MOST = 0.5  # of all micro-batches: a run with more of them has learned from the few others
DO = "Look at these pages and their boxes (ocrlab samples check DIR); `ocrlab replay` names the module and operator"


class Numbers:
    """What was seen of losses that are not finite; of several ranks each one sees its own."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.count = self.total = 0
        self.first: int | None = None  # the step at which the first was noticed
        self.pages: dict[str, None] = {}

    def see(self, losses: Sequence[Tensor], pages: Sequence[Sequence[str]], step: int) -> bool:
        """Count some micro-batches, with the pages of the last of them; tell whether any is the first that is not."""
        page_names = [*[()] * (len(losses) - len(pages)), *pages]
        self.total += len(losses)
        wrong = [
            names for loss, names in zip(losses, page_names, strict=True) if not bool(loss.detach().isfinite().all())
        ]
        begins = bool(wrong) and not self.count
        self.count += len(wrong)
        self.first = step if begins else self.first
        self.pages |= dict.fromkeys(name for names in wrong for name in names)
        return begins

    def state(self) -> dict[str, Any]:
        """Return what a resumed run goes on with, in types that `weights_only=True` reads."""
        return {"count": self.count, "total": self.total, "first": self.first, "pages": list(self.pages)}

    def go_on(self, state: dict[str, Any]) -> None:
        """Take up the state of rank 0, which wrote the checkpoint: what the others had seen went with them."""
        if self.ranks.first:
            self.count, self.total, self.first = state["count"], state["total"], state["first"]
            self.pages = dict.fromkeys(state["pages"])

    def check(self, model: nn.Module, step: int) -> None:
        """Raise RunError, on all ranks, where a weight is not finite: no later step can mend that."""
        weights = [getattr(p, "_local_tensor", p).detach() for p in model.parameters()]
        broken = any(not bool(p.isfinite().all()) for p in weights)
        if mean(self.ranks, [float(broken)])[0]:
            got = (
                f"NaN or infinity in weights at step {step}; {self}" if broken else f"it is so on another rank; {self}"
            )
            do = f"{DO}; go on from an older checkpoint with a smaller optim.lr"
            raise RunError("The weights are no finite numbers any more", got=got, need="a finite loss", do=do)

    def judge(self) -> None:
        """Raise RunError at the end, on all ranks, where most of the losses were not finite."""
        share = mean(self.ranks, [self.count / max(1, self.total)])[0]
        if share > MOST:
            what = "The loss was no finite number in most of the training"
            raise RunError(what, got=str(self), need="a finite loss", do=DO)

    def metrics(self) -> dict[str, Any]:
        """Return what belongs to the final metrics: how many, where there were any."""
        return {"not_finite": float(self.count)} if self.count else {}

    def __str__(self) -> str:
        if not self.count:
            return "no loss of its own that is not finite"
        names = ", ".join(list(self.pages)[:SHOWN]) or "pages before the resume"
        more = f" and {len(self.pages) - SHOWN} more" if len(self.pages) > SHOWN else ""
        return (
            f"the loss of {self.count} of {self.total} micro-batches was NaN or infinity, first seen at step "
            f"{self.first}; their pages: {names}{more}"
        )
