"""Law 5: padding, other packed samples and later tokens change no output, and targets are the next tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ocrlab.debug.instruments.tensor_tree import dotted_tensors
from ocrlab.debug.laws.experiment import Experiment, NotTestable, Run, distance, rebuilt
from ocrlab.debug.laws.law import Extras
from ocrlab.debug.laws.result import Result, broken, holds

SHORTEST = 4  # tokens of a sequence, and different ones, from which on agreement is not chance
MOSTLY = 0.9  # of the positions
MORE = 3  # tokens of padding that are added
REACHED = 0.01  # of an output's size: less comes from layers that look a little beyond the end


@dataclass
class Tokens:
    """The tokens that a model reads: their names in the batch, their values (B, T), and the output (B, T', V)."""

    names: list[str]
    ids: Tensor
    run: Run
    which: int  # of the outputs

    @property
    def output(self) -> Tensor:
        """The output that has a row for each position."""
        return self.run.outputs[self.which]


def test(step: Experiment, extras: Extras) -> Iterator[Result]:
    """Change padding, other samples of a packed row, and later tokens, and look at the outputs that must stay."""
    if step.draws_numbers():
        raise NotTestable("the step draws random numbers in eval mode")
    results = [*_padding(step), *_more_padding(step), *_longer_signals(step)]
    words = "more padding changes no output and no loss"
    tokens = _tokens(step)
    if tokens is not None:
        causal = _causal(step, tokens)
        results += [*_offset(tokens, causal), *_packed(step, tokens, extras.loader)]
        words = "later tokens change no earlier output" if causal else "outputs depend on the whole sequence"
    yield from results
    if tokens is None and not results and all(_fill(t) is None for _, t in _texts(step)):
        raise NotTestable("the batch holds no texts (samples, positions)")
    if not results:
        yield holds(words)


def _texts(step: Experiment) -> list[tuple[str, Tensor]]:
    whole = [(n, t) for n, t in dotted_tensors(step.batch) if t.ndim == 2 and t.dtype in (torch.int64, torch.int32)]
    return [(name, t) for name, t in whole if t.shape[0] == step.rows and t.shape[1] >= SHORTEST]


def _tokens(step: Experiment) -> Tokens | None:
    run = step.run(training=False, gradients=True)
    whole = dict(_texts(step))
    for read in (t for call in run.inputs for t in call if t.ndim == 2 and not t.is_floating_point()):
        rows, length = read.shape
        names = [n for n, t in whole.items() if t.shape[0] == rows and t.shape[1] >= length >= SHORTEST]
        names = [n for n in names if torch.equal(whole[n][:, :length], read) and read.unique().numel() > SHORTEST]
        for which, out in enumerate(run.outputs):
            if names and out.ndim == 3 and out.shape[0] == rows and out.shape[1] in (length, length - 1):
                return Tokens(names, whole[names[0]], run, which)
    return None


def _changed(step: Experiment, names: Sequence[str], at: Tensor, shift: int = 1) -> Run:
    """Run with other tokens at the places `at` (B, T): those of another row at the same place, or the next id."""

    def change(name: str, t: Tensor) -> Tensor:
        if name not in names:
            return t
        other = t.roll(shift, 0)
        other = torch.where(other == t, t.roll(shift + 1, 1), other)
        return torch.where(at[:, : t.shape[1]], other, t)

    return step.run(rebuilt(step.batch, change), training=False)


def _influence(tokens: Tokens, other: Run, limit: float, at: Tensor) -> Tensor:
    """Return where (B, T') the output changed beyond the tolerance, of the places `at`."""
    before, after = tokens.output, other.outputs[tokens.which]
    change = (before - after).abs().amax(-1)
    return (change > limit * before.abs().max()) & at[:, : before.shape[1]]


def _causal(step: Experiment, tokens: Tokens) -> bool:
    """Return whether a later token changes no earlier output."""
    place = tokens.output.shape[1] // 2
    at = torch.zeros_like(tokens.ids, dtype=torch.bool)
    at[:, place] = True
    before = torch.zeros_like(at)
    before[:, :place] = True
    return not bool(_influence(tokens, _changed(step, tokens.names, at), step.rounding(), before).any())


def _offset(tokens: Tokens, causal: bool) -> Iterator[Result]:
    """Find by the gradient of the outputs which token each position is to predict, and how far away it is."""
    push = tokens.run.pushes[tokens.which] if tokens.which < len(tokens.run.pushes) else None
    if push is None or push.shape != tokens.output.shape or push.shape[2] <= SHORTEST:
        return
    low = push.amin(2)
    single = ((push < 0).sum(2) == 1) & (low < 0)
    target = push.argmin(2)
    shares = {}
    for offset in (-2, -1, 0, 1, 2, 3):
        start, stop = max(0, -offset), min(push.shape[1], tokens.ids.shape[1] - offset)
        valid = single[:, start:stop]
        if stop <= start or int(valid.sum()) < SHORTEST or target[:, start:stop][valid].unique().numel() <= SHORTEST:
            continue
        same = tokens.ids[:, start + offset : stop + offset] == target[:, start:stop]
        shares[offset] = float(same[valid].float().mean())
    if not shares:
        return
    best = max(shares, key=lambda offset: shares[offset])
    if shares[best] < MOSTLY or sum(share >= MOSTLY for share in shares.values()) > 1:
        return
    if best == 1 and not causal:
        got = "each output predicts the next token, and changes when a later token changes: it reads what it predicts"
        do = "Give the attention a causal mask (is_causal=True, attn_mask)"
        causes = ("the attention has no causal mask", "a bidirectional or centred layer", "a mask the wrong way round")
        yield broken(
            "target.read", "the model's attention", got, "outputs that do not depend on later tokens", do, *causes
        )
    elif causal and best != 1:
        words = (
            "the token that it has just read"
            if not best
            else f"the token {abs(best)} places {'after' if best > 0 else 'before'}"
        )
        yield broken(
            "target.offset",
            "the targets",
            f"a causal model is trained to predict {words}: targets fit the tokens best with an offset of {best}, in"
            f" {shares[best]:.0%} of the places, in place of 1",
            "an offset of 1",
            "Compare logits[:, :-1] with ids[:, 1:], once",
            "the targets are not shifted" if best == 0 else "the targets are shifted twice, by data and loss",
        )


def _packed(step: Experiment, tokens: Tokens, loader: Any) -> Iterator[Result]:
    """Change the first sample of every packed row, and look at the outputs of the samples after it."""
    ends = first_sample_ends(tokens.ids, dict(dotted_tensors(step.batch)), getattr(loader, "dataset", None))
    packed = [row for row, end in enumerate(ends) if end]
    if len(packed) * 2 < len(ends):
        return
    places = torch.arange(tokens.ids.shape[1], device=tokens.ids.device)
    limit = torch.tensor(ends, device=places.device)[:, None]
    at = places < limit
    later = (places > limit) & (limit > 0)
    reached = _influence(tokens, _changed(step, tokens.names, at), step.rounding(), later)
    later = later[:, : reached.shape[1]]
    if bool(reached.any()):
        row, place = reached.nonzero()[0].tolist()
        yield broken(
            "sequences.packed",
            f"{', '.join(tokens.names)} ({len(packed)} of {len(ends)} rows are packed)",
            f"several samples are packed into one sequence, and other tokens in the first change the outputs of the"
            f" next ones in {float(reached.sum() / later.sum()):.0%} of the places: tokens attend to samples before"
            f" their own (row {row}: its first sample ends before position {ends[row]}, position {place} changes)",
            "outputs that depend on their own sample only",
            "Pass a mask of the sample boundaries (position_ids that restart, cu_seqlens, a block-diagonal attn_mask),"
            " or pad instead of packing",
            "the attention has no block-diagonal mask over the packed samples",
            "positions do not start again",
        )


def first_sample_ends(ids: Tensor, named: dict[str, Tensor], dataset: Any) -> list[int]:
    """Return where the first packed sample of each row ends, 0 for a row without evidence of several samples.

    The evidence: positions or sample numbers in the batch, or samples that an attribute of the data set holds.
    """
    for name, t in named.items():
        if t.shape == ids.shape and not t.is_floating_point() and ("position" in name or "segment" in name):
            breaks = (t[:, 1:] != t[:, :-1] + 1) if "position" in name else (t[:, 1:] != t[:, :-1])
            return [int(b.nonzero()[0]) + 1 if bool(b.any()) else 0 for b in breaks]
    samples = _samples(dataset)
    starts: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for sample in samples:
        starts.setdefault(sample[:2], []).append(sample)
    ends = []
    for row in ids.tolist():
        spans: list[tuple[int, int]] = []
        place = 0
        while place < len(row) - 1:
            fits = [s for s in starts.get(tuple(row[place : place + 2]), ()) if tuple(row[place : place + len(s)]) == s]
            length = max(map(len, fits), default=0)
            spans += [(place, place + length)] if length else []
            place += length or 1
        whole = sum(end - start for start, end in spans)
        ends.append(spans[0][1] if len(spans) >= 2 and whole >= 0.5 * len(row) else 0)
    return ends


def _samples(dataset: Any, deep: int = 0) -> list[tuple[int, ...]]:
    """Return the token lists of different lengths that a data set holds, [] for none."""
    for value in vars(dataset).values() if hasattr(dataset, "__dict__") else ():
        if isinstance(value, list | tuple) and len(value) >= 8:
            some = [v.tolist() if isinstance(v, Tensor) and v.ndim == 1 else v for v in value[:50_000]]
            good = all(isinstance(v, list | tuple) and len(v) > 2 and isinstance(v[0], int) for v in some)
            if good and len(Counter(map(len, some))) > 1:
                return [tuple(v) for v in some]
        elif deep < 2 and hasattr(value, "__getitem__") and (inside := _samples(value, deep + 1)):
            return inside
    return []


def _padding(step: Experiment) -> Iterator[Result]:
    """Change what stands in the padding that a mask of the batch marks, and look at outputs and loss."""
    texts = _texts(step)
    first = step.run(training=False) if texts else Run(0.0)
    for name, mask in dotted_tensors(step.batch):
        if "mask" not in name.lower() or mask.ndim != 2 or not bool(((mask == 0) | (mask == 1)).all()):
            continue
        real = mask.bool()
        names = [n for n, t in texts if t.shape == mask.shape and n != name and "label" not in n]
        if not names or bool(real.all()) or not bool(real.any(1).all()):
            continue
        other = _changed(step, names, ~real)
        reached = 0
        for before, after in zip(first.outputs, other.outputs, strict=False):
            moved = (before - after).abs() > step.rounding() * before.abs().max()
            places = before.ndim > 2 and before.shape[:2] == real.shape
            if before.ndim > 1 and len(before) == len(real) and (places or before.ndim == 2):
                reached += int((moved.flatten(2).any(2) & real if places else moved.any(1)).sum())
        if reached or distance(first.loss, other.loss) > step.rounding("loss"):
            got = f"{reached} outputs" if reached else f"the loss from {first.loss:.5g} to {other.loss:.5g}"
            yield _padding_broken(f"other tokens in the padding that {name} marks change {got}", ", ".join(names))
            return


def _fill(ids: Tensor) -> int | None:
    """Return the token that fills rows up at their end, by different lengths, and stands nowhere else; or None."""
    value = int(ids[:, -1].mode().values)
    fill = (ids == value).flip(1).cumprod(1).flip(1).bool()
    lengths = fill.sum(1)
    whole = bool((fill == (ids == value)).all()) and ids.unique().numel() > SHORTEST
    return value if whole and lengths.unique().numel() > 2 and int(lengths.max()) >= 2 else None


def _more_padding(step: Experiment) -> Iterator[Result]:
    """Make every text longer by some padding, and look at outputs and loss; of models that read along the sequence."""
    texts = dict(_texts(step))
    kinds = (nn.RNNBase, nn.MultiheadAttention)
    values = {name: _fill(t) for name, t in texts.items()}
    if not texts or None in values.values() or not any(isinstance(m, kinds) for m in step.model.modules()):
        return
    first = step.run(training=False)

    def longer(name: str, t: Tensor) -> Tensor:
        return functional.pad(t, (0, MORE), value=values[name] or 0) if name in texts else t

    try:
        other = step.run(rebuilt(step.batch, longer), training=False)
    except Exception:  # it has a fixed length
        return
    padded = torch.stack([t.eq(values[name] or 0).any(1) for name, t in texts.items()]).all(0)
    for before, after in zip(first.outputs, other.outputs, strict=False):
        if before.ndim != 2 or before.shape != after.shape or len(before) != len(padded):
            continue
        moved = ((before - after).abs().amax(1) > step.rounding() * before.abs().max()) & padded
        if bool(moved.any()):
            got = f"{MORE} more tokens of padding change the output of {int(moved.sum())} samples"
            yield _padding_broken(got, ", ".join(texts))
            return
    if distance(first.loss, other.loss) > step.rounding("loss") and not any(t.ndim == 2 for t in first.outputs):
        got = f"{MORE} more tokens of padding change the loss from {first.loss:.5g} to {other.loss:.5g}"
        yield _padding_broken(got, ", ".join(texts))


def _signals(step: Experiment) -> Iterator[tuple[str, str, int]]:
    """Yield signals (N, ., T) or (N, T, .) that zeros fill up behind the lengths in the batch: both names, the axis."""
    named = dict(dotted_tensors(step.batch))
    for name, lengths in named.items():
        if lengths.shape != (step.rows,) or lengths.is_floating_point() or lengths.unique().numel() < 3:
            continue
        longest = int(lengths.max())
        signals = [t for t in named.values() if t.ndim == 3 and t.is_floating_point() and len(t) == step.rows]
        if int(lengths.min()) < 1 or not any(longest in t.shape[1:] for t in signals):
            continue  # whatever it counts, a mask of that length may not fit into memory
        filled = torch.arange(longest, device=lengths.device) >= lengths[:, None]
        for other, signal in named.items():
            axes = [axis for axis in range(1, signal.ndim) if signal.shape[axis] == longest >= SHORTEST * MORE]
            if signal.ndim == 3 and signal.is_floating_point() and len(signal) == step.rows and len(axes) == 1:
                padding = signal.movedim(axes[0], 1)[filled.to(signal.device)]
                if padding.numel() and not bool(padding.any()):
                    yield name, other, axes[0]


def _longer_signals(step: Experiment) -> Iterator[Result]:
    """Make padded signals of a model that gets their lengths longer by zeros, and look at outputs without time axis."""
    for lengths, name, axis in _signals(step):

        def longer(key: str, t: Tensor, name: str = name, axis: int = axis) -> Tensor:
            if key != name:
                return t
            return functional.pad(t, (0, t.shape[2] // 2) if axis == 2 else (0, 0, 0, t.shape[1] // 2))

        first, wanted = step.run(training=False), dict(dotted_tensors(step.batch))[lengths]
        if not any(t.shape == wanted.shape and torch.equal(t, wanted) for call in first.inputs for t in call):
            continue
        try:
            after = step.run(rebuilt(step.batch, longer), training=False)
        except Exception:  # it has a fixed length
            continue
        for before, now in zip(first.outputs, after.outputs, strict=False):
            same = before.shape == now.shape and before.ndim == 2 and len(before) == step.rows
            apart = distance([before], [now]) if same else 0.0
            if apart > REACHED:
                got = f"more padding changes the outputs by {apart:.2g} of their size, though the model gets"
                yield _padding_broken(f"{got} the lengths (batch.{lengths})", f"batch.{name}")
                return


def _padding_broken(got: str, where: str) -> Result:
    do = (
        "Pass the mask to every attention layer (True may mean either: read its docs), take the last real step"
        " (pack_padded_sequence), and leave padding out of the loss (ignore_index)"
    )
    causes = (
        "the attention does not get the mask, or gets it the wrong way round",
        "the last step of a recurrent layer is read, which comes after the padding",
        "padding counts as a label of the loss",
        "the mask is 1 everywhere: it expects lengths relative to the longest (0 to 1) and gets numbers of frames",
    )
    return broken("sequences.padding", where, got, "outputs and a loss that padding does not change", do, *causes)
