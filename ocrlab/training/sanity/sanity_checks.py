"""Do data, model and loss agree? Checks of a whole training in seconds, each with its number and its limit.

    report = sanity.check(config)                        # what `ocrlab train` would do with this config
    report = sanity.check(config, model=Mine, loss=ours) # your own detector, loss, data set or optimizer

What is given takes the place of ocrlab's: `model()` returns a module whose forward gives `probability_logits` and
`threshold_logits` (B, 1, H, W) of images (B, 3, H, W); `loss` is called as losses.db_loss; `data(samples, config)` is
a data set as data.dataset.Crops; `order(pages, seed, stop)` a sampler as PageOrder; `optimizer(model)` an optimizer.
For a module of any other kind there is `ocrlab.check_step`.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from textwrap import shorten
from typing import Any

import torch
from torch import nn

from ocrlab.config.schema import Config
from ocrlab.data.dataset import Batch, Crops, PageOrder
from ocrlab.data.formats.reader import Sample, load
from ocrlab.debug.laws.checker import check_step
from ocrlab.debug.laws.law import Report as StepReport
from ocrlab.errors import ConfigError
from ocrlab.losses.db_loss import TargetMaps, db_loss
from ocrlab.model.dbnet import Detector
from ocrlab.records import Check
from ocrlab.training.optimizer import adamw
from ocrlab.training.sanity import data_checks, model_checks, reference_loss
from ocrlab.training.sanity.model_checks import LearnedPage
from ocrlab.training.sanity.reference_loss import Loss, make_check

Progress = Callable[[dict[str, Any]], None]
SECONDS = 10.0  # for the experiments on one step
LONGEST = 80  # characters of a finding in the row of its check


@dataclass
class Report:
    """Every check in order, the laws of the step, the batch that it was checked with, and the overfitted page."""

    checks: list[Check] = field(default_factory=list)
    contract: StepReport | None = None
    batch: Batch | None = None
    learned: LearnedPage | None = None

    @property
    def ok(self) -> bool:
        """Whether no check failed."""
        return not any(check.judgement == "fail" for check in self.checks)

    def __str__(self) -> str:
        lines = [f"{c.judgement:4}  {c.name}: {c.observed}. Needed: {c.need}. {c.do}".rstrip() for c in self.checks]
        findings = self.contract.findings if self.contract else []
        return "\n".join([*lines, *(f"      {finding}" for finding in findings)])


@dataclass
class Subject:
    """What is checked: a config, its pages, the functions that make a training of them; and the report so far."""

    config: Config
    samples: Sequence[Sample]
    make_model: Callable[[], nn.Module]
    loss: Loss
    data: data_checks.Data
    order: data_checks.Order
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    progress: Progress
    report: Report = field(default_factory=Report)

    def model(self) -> nn.Module:
        """Return a new model in train mode, with the weights that belong to the seed."""
        torch.manual_seed(self.config.seed)
        return self.make_model().train()

    def first_batch(self) -> Batch:
        """Return the first training batch, loaded once."""
        if self.report.batch is None:
            self.report.batch = data_checks.first_batch(self.data, self.samples, self.config)
        return self.report.batch


def check(
    config: Config,
    *,
    model: Callable[[], nn.Module] | None = None,
    loss: Loss = db_loss,
    data: data_checks.Data = Crops,
    order: data_checks.Order = PageOrder,
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None = None,
    only: Sequence[str] = (),
    progress: Progress = lambda _event: None,
) -> Report:
    """Return what every check says; nothing is trained that stays, and nothing is written.

    `only` names groups of checks (`GROUPS`), all others are left out; `progress` gets the events of train.fit. A check
    that raises has failed, with what it raised. Raises DataError where there are no pages, ConfigError for a group that
    does not exist.
    """
    unknown = sorted(set(only) - set(GROUPS))
    if unknown:
        raise ConfigError("There are no such checks", got=", ".join(unknown), need=", ".join(GROUPS))
    samples = load(config.data, config.train_split, exif=config.exif).samples
    make = model or partial(Detector, config.encoder, config.decoder, config.width)
    optimizer = optimizer or partial(adamw, optim=config.optim)
    subject = Subject(config, samples, make, loss, data, order, optimizer, progress)
    report = subject.report
    with torch.random.fork_rng(devices=[]):
        for name, group in GROUPS.items():
            if not only or name in only:
                report.checks += _guarded(name, group(subject))
    steps = len(report.learned.curve) if report.learned else 0
    progress({"kind": "end", "step": steps, "total": steps})
    return report


def _contract(subject: Subject) -> Iterator[Check]:
    """The laws of a step on the first batch, and its gradients."""
    batch, model = subject.first_batch(), subject.model()
    step = model_checks.step(subject.loss, subject.config)
    report = check_step(model, batch, step, subject.optimizer(model), seconds=SECONDS)
    subject.report.contract, findings = report, report.findings
    wrong = [finding for finding in findings if finding.judgement == "fail"]
    result = f"{len(wrong)} rule{'s' * (len(wrong) != 1)} violated, {len(report.stages)} modules ran"
    if findings:
        worst, looks = (wrong or findings)[0], len(findings) - len(wrong)
        result += f"; {looks} more to look at" if looks else ""
        result += f"; first {worst.rule} at {worst.where}: {shorten(worst.got, LONGEST, placeholder=' …')}"
    do = "Each finding is below the checks, with its fix"
    yield make_check("contract of a step", not findings, result, "none", do, warn=not wrong)
    trainable = [name for name, p in model.named_parameters() if p.requires_grad]
    bad = [f for f in findings if f.rule.startswith(("gradient.", "backward.", "loss."))]
    reached = sum(report.norms.get(name, 0.0) > 0 for name in trainable)
    result = f"{reached} of {len(trainable)} parameters reached"
    result += f"; {bad[0].rule} at {bad[0].where}" if bad else ""
    if not batch.maps[3].any() and not bad:
        yield Check("gradients", "skip", f"{result}; no text in this batch", "text")
        return
    do = "Look for detach(), an unused branch, or a loss term that is masked out"
    yield make_check("gradients", reached == len(trainable) and not bad, result, "all, finite", do)


def _loss(subject: Subject) -> Iterator[Check]:
    """The loss against its reference, with text and without."""
    config, maps = subject.config.loss, TargetMaps(*subject.first_batch().maps)
    yield from reference_loss.compare(subject.loss, maps, (config.bce, config.dice, config.l1), config.negative_ratio)


def _inference(subject: Subject) -> Iterator[Check]:
    """Whether prediction takes the way of training."""
    yield model_checks.inference(subject.model(), subject.first_batch())


def _data(subject: Subject) -> Iterator[Check]:
    """Order, augmentation and workers; whether maps lie where the text is; polygons to maps and back."""
    config, samples = subject.config, subject.samples
    yield from data_checks.text(samples, config)
    yield data_checks.order(subject.order, len(samples), config)
    yield data_checks.augmentation(subject.data, samples, config)
    yield data_checks.workers(subject.data, samples, config)
    yield from data_checks.alignment(subject.data, samples, config)
    yield data_checks.round_trip(samples, config)


def _by_heart(subject: Subject) -> Iterator[Check]:
    """One page, overfitted."""
    began = time.perf_counter()
    learned = model_checks.learn(subject.model, subject.loss, subject.samples, subject.config, subject.progress)
    subject.report.learned = learned
    yield model_checks.by_heart(learned, time.perf_counter() - began)


GROUPS: dict[str, Callable[[Subject], Iterator[Check]]] = {
    "data": _data,
    "contract": _contract,
    "loss": _loss,
    "inference": _inference,
    "by_heart": _by_heart,
}


def _guarded(name: str, checks: Iterator[Check]) -> list[Check]:
    """Return what a group of checks says; where it raises, what it said before, and a failure with what was raised."""
    results: list[Check] = []
    began = time.perf_counter()
    try:
        for result in checks:
            now = time.perf_counter()
            results.append(replace(result, seconds=round(now - began, 3)))
            began = now
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        message = f"{type(error).__name__}: {error}".strip().partition("\n")[0][:300]
        place = f"{frame.filename.rpartition('/')[2]}:{frame.lineno}"
        results.append(Check(name, "fail", f"{message} ({place})", "no error", "Look at the line that is named"))
    return results
