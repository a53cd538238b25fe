"""Messages of libraries that sentences with blanks explain (see rules.py): a pattern, then its rules in order."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any, TypeGuard

from ocrlab.debug.diagnosis.explanations.explanation import Explanation
from ocrlab.debug.diagnosis.explanations.failure import Failure
from ocrlab.debug.diagnosis.explanations.layers import whole_number
from ocrlab.debug.diagnosis.explanations.origins import failing_call, origin
from ocrlab.debug.diagnosis.explanations.rules import Blanks, Rule, explain_by
from ocrlab.debug.diagnosis.explanations.source import argument
from ocrlab.debug.diagnosis.explanations.training_loops import (
    branch_on_a_tensor,
    changed_in_its_loop,
    column_lengths,
    planned_steps,
    rare_update,
)

NUMBERS = re.compile(r"-?\d+")


def _rows_by_name(blanks: Blanks) -> Mapping[str, object] | None:
    """Return no blanks where `drop` is given texts without an axis, which were meant as columns; else None."""
    place = failing_call(blanks.failure, blanks.frame, "drop")
    words = {word.arg for word in place[1].keywords} if place else {"axis"}
    return {} if "'" in str(blanks.parts.get("names")) and not words & {"axis", "columns", "index"} else None


def _pieces(blanks: Blanks) -> Mapping[str, object]:
    pieces = [int(number) for number in NUMBERS.findall(blanks["pieces"])]
    size, parts = int(blanks["size"]), len(pieces)
    even = f" `{blanks['base']}.chunk({parts}, dim={blanks['axis']})` cuts it evenly." if size % parts == 0 else ""
    return {"total": sum(pieces), "even": even}


def _shuffled(blanks: Blanks) -> Mapping[str, object]:
    channels, square = int(blanks["channels"]), int(blanks["square"])
    factor = round(square**0.5)
    words = {"factor": factor, "above": (channels // square + 1) * square}
    place = failing_call(blanks.failure, blanks.frame)
    input_ = origin(blanks.failure, place[0], place[1].args[0], blanks.frame) if place and place[1].args else None
    layer = (
        origin(blanks.failure, input_.source, input_.node.func, input_.frame)
        if input_ and _is_call(input_.node)
        else None
    )
    size = argument(layer.node, 1, "out_channels", "out_features") if layer and _is_call(layer.node) else None
    for side, other in ((size.left, size.right), (size.right, size.left)) if isinstance(size, ast.BinOp) else ():
        if layer and whole_number(blanks.failure, layer.source, other) == factor and channels % factor == 0:
            rest, scale = layer.source.code(side), layer.source.code(other)
            code = layer.source.code(size)
            return words | {
                "why": f" `{code}` multiplies by {factor} once, but a pixel shuffle divides by it twice, in height and "
                "width.",
                "right": f"`{rest} * {scale} ** 2` = {channels // factor * square} in place of `{code}` = {channels} "
                f"({layer.place})",
            }
    return words | {
        "why": "",
        "right": f"{square} for a result of one channel, {3 * square} for RGB; {words['above']} in place of {channels} "
        "is the next multiple",
    }


def _is_call(node: ast.expr) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call)


def _starting(blanks: Blanks) -> Mapping[str, object]:
    return {"wanted": "(batch, channels, height, width)" if "," in blanks["output"] else "(batch, channels, length)"}


MESSAGES: tuple[tuple[Any, ...], ...] = (  # pattern, rules
    # shapes
    (
        r"split_with_sizes expects split_sizes to sum exactly to (?P<size>\d+) \(input tensor's size at dimension "
        r"(?P<axis>-?\d+)\), but got split_sizes=\[(?P<pieces>[^\]]*)\]",
        Rule(
            "`<call>` (<here>) cuts axis <axis>, which has <size> entries, into pieces (<pieces>) that add up to "
            "<total>.<base.from>",
            "Make both agree: pieces that add up to <size>, or a layer with <total> outputs.<even>",
            derive=_pieces,
        ),
    ),
    (
        r"Size does not match at dimension (?P<axis>\d+) expected index \[(?P<index>[\d, ]*)\] to be (?:no "
        r"larger|smaller) than (?:self|src) \[(?P<self>[\d, ]*)\] apart from dimension (?P<along>\d+)",
        Rule(
            "`<call>` (<here>) looks up entries along axis <along>; in every other axis the index may not be larger "
            "than the values, but in axis <axis> the index ([<index>]) is larger than the values ([<self>]): the "
            "two do not belong to the same batch.<index@1.from>",
            "Make the index from the same batch, with the shape of the values except in axis <along>.",
        ),
    ),
    (
        r"scatter\(\): Expected self\.dtype to be equal to src\.dtype",
        Rule(
            "`<call>` (<here>) writes values of another type into `<base>` (<base.dtype>): `scatter` converts nothing."
            "<base.from>",
            "Give both one type: make `<base>` with the `dtype` of the values, or convert them, "
            "`<src@2>.to(<base>.dtype)`.",
        ),
        Rule(
            "`<call>` (<here>) writes values of another type into its target: `scatter` converts nothing.",
            "Give both one type: `src.to(target.dtype)`.",
        ),
    ),
    (
        r"mixed dtype \(CPU\): (?:expect parameter to have|expect input to have|all inputs must share)",
        Rule(
            "`<input@0>` is <input@0.dtype> (<here>: `<call>`), and <layer> computes in the type of its weights, which "
            "is another.<input@0.from>",
            "Convert the input where it is made (`.float()` for data from numpy), or convert model and data alike.",
        ),
    ),
    (
        r"pixel_shuffle expects its input's 'channel' dimension to be divisible by the square of upscale_factor, but "
        r"input\.size\(-3\)=(?P<channels>\d+) is not divisible by (?P<square>\d+)",
        Rule(
            "A pixel shuffle by <factor> makes one channel of <factor> x <factor> = <square>, and <channels> "
            "channels cannot be divided by <square> (<here>: `<call>`).<input@0.from><why>",
            "Let the layer before it make <factor>**2 channels for each channel of the result: <right>.",
            derive=_shuffled,
        ),
    ),
    (
        r"Padding size should be less than the corresponding input dimension, but got: padding \((?P<before>\d+), "
        r"(?P<after>\d+)\) at dimension (?P<axis>\d+) of input \[(?P<shape>[\d, ]*)\]",
        Rule(
            "Reflection mirrors the values at the edge, so it cannot add more values than there are: `<call>` "
            "(<here>) pads axis <axis> of [<shape>] by <before> and <after>.<input@0.from>",
            'Pad by less than the length of the axis, or with `mode="constant"` or `"replicate"`; a clip that is this '
            "short may be an error in the data.",
        ),
    ),
    (
        r"(?:Padding size (?P<size>\d+) is not supported for (?P<dims>\d)D input tensor|Only 2D, 3D, 4D, 5D padding "
        r"with non-constant padding are supported)",
        Rule(
            '`<call>` (<here>) pads with `mode="<mode@2.value>"`, which works on the last axes of a batch with '
            "channels; "
            "`<input@0>` is <input@0.shape>, without a batch or channel axis.",
            "Add the axes and remove them after it: `F.pad(<input@0>[None, None], ...)[0, 0]`, or use the mode "
            '`"constant"`, which takes any number of axes.',
        ),
    ),
    (
        r"Input and output must have the same number of spatial dimensions, but got input with spatial dimensions of "
        r"\[(?P<input>[\d, ]*)\] and output size of [\[(]?(?P<output>[\d, ]*)",
        Rule(
            "`F.interpolate` reads the first two axes as batch and channels, so `<input@0>` (<input@0.shape>) has "
            "too few or too many axes for the size (<output>) (<here>).<input@0.from>",
            "Give it the form <wanted>: add the missing channel axis with `<input@0>.unsqueeze(1)`, and remove it "
            "after it with `.squeeze(1)`.",
            derive=_starting,
        ),
    ),
    (
        r"Got (?P<dims>\d)D input, but (?P<mode>\w+) mode needs (?P<needed>\d)D input",
        Rule(
            '`mode="<mode>"` needs <needed> axes (batch, channels, then the positions), and `<input@0>` has <dims> '
            "(<here>)."
            "<input@0.from><operands>",
            "Add the missing axis with `.unsqueeze(1)` (channels) or `.unsqueeze(0)` (batch), or use the mode for "
            '<dims> axes (3: "linear", 4: "bilinear", 5: "trilinear").',
        ),
    ),
    (
        r"einsum\(\): the number of subscripts in the equation \((?P<letters>\d+)\) does not match the number of "
        r"dimensions \((?P<axes>\d+)\) for operand (?P<number>\d+)",
        Rule(
            "The equation of `<call>` (<here>) names <letters> axes for operand <number>, which has <axes>.<operands>",
            "Name every axis, one letter each, or put `...` for those that only pass through.",
        ),
    ),
    (
        r"einsum\(\): (?P<what>more|fewer) operands were provided than specified in the equation",
        Rule(
            "`<call>` (<here>) passes <what> tensors than the equation has comma-separated terms.",
            "Write one term for each tensor, with commas between them.",
        ),
    ),
    (
        r"offsets\[0\] has to be 0, i\.e\., the first sequence in the mini-batch has to start from position 0\. "
        r"However, got (?P<first>-?\d+)",
        Rule(
            "The offsets of an EmbeddingBag are the positions where each bag begins, so the first is 0, but "
            "`<offsets@1>` begins with <first> (<here>): these look like lengths or ends.<offsets@1.from>",
            "Make starts of the lengths: `torch.cat([torch.tensor([0]), lengths.cumsum(0)[:-1]])`.",
        ),
    ),
    (
        r"if input is 2D, then offsets has to be None",
        Rule(
            "`<input@0>` (<input@0.shape>) already has one bag in each row, so `<call>` (<here>) must not get "
            "offsets; they belong to a single long row of ids.",
            "Leave `<offsets@1>` out, or flatten the ids and keep the offsets.",
        ),
    ),
    (
        r"offsets has to be a 1D Tensor but got (?P<got>\w+)",
        Rule(
            "`<input@0>` is one long row of ids, and `<call>` (<here>) does not say where each bag begins: "
            "`offsets` is <got>.",
            "Pass the start of each bag (`offsets=torch.tensor([0, ...])`), or ids of the form (bags, ids in each).",
        ),
    ),
    (
        r"`lengths` array must be sorted in decreasing order when `enforce_sorted` is True",
        Rule(
            "The sequences of the batch do not stand in the order of their lengths, longest first, as "
            "`<call>` (<here>) expects by default.<lengths@1.from>",
            "Pass `enforce_sorted=False`: torch sorts them and restores the order.",
            ("batch_first=True", "batch_first=True, enforce_sorted=False"),
        ),
    ),
    (
        r"Expected `len\(lengths\)` to be equal to batch_size, but got (?P<lengths>\d+) \(batch_size=(?P<batch>\d+)\)",
        Rule(
            "`<call>` (<here>) takes <batch> for the batch size, and there are <lengths> lengths.<operands> With "
            "`batch_first=True` the first axis is the batch, without it the second.<input@0.from>",
            "Set `batch_first` as the tensor is: (batch, time, features) needs `batch_first=True`, (time, batch, "
            "features) must not have it.",
        ),
    ),
    (
        r"'lengths' argument should be a 1D CPU int64 tensor, but got (?P<got>[^\n]+)",
        Rule(
            "The lengths of `<call>` (<here>) are on the wrong device or of the wrong type (<got>); torch needs "
            "them on the CPU, whatever device the batch is on.",
            "Pass `<lengths@1>.cpu()`, and leave the lengths out of `.to(device)`.",
            ("<lengths@1>", "<lengths@1>.cpu()"),
        ),
    ),
    (
        r"query should be unbatched 2D or batched 3D "
        r"tensor but received (?P<dims>\d)-D query tensor",
        Rule(
            "Attention takes (batch, length, features) or, unbatched, (length, features); the query of `<call>` "
            "(<here>) has <dims> axes.<operands>",
            "Flatten the positions of a feature map first: `x.flatten(2).transpose(1, 2)`.",
        ),
    ),
    (
        r"Only 3D input Tensors are supported|For unbatched 2-D input, hx and cx should also be 2-D|For batched 3-D "
        r"input, hx (?:and cx )?should also be 3-D but got (?P<got>[^\n]+)",
        Rule(
            "The hidden state of `<call>` (<here>) has another number of axes than its input: with a batch both "
            "have three, without one both have two.<operands>",
            "Make the state of the form (layers, batch, hidden size): `torch.zeros(num_layers, x.size(0), "
            "hidden_size)` with `batch_first=True`.",
        ),
    ),
    (
        r"LSTM: Expected input to be 2D or 3D, got (?P<got>\d)D instead|(?:RNN|GRU): Expected input to be 2D or 3D, "
        r"got (?P<dims>\d)D",
        Rule(
            "A recurrent layer takes (batch, time, features) or (time, features), and the input of `<call>` "
            "(<here>) has another number of axes.<operands>",
            "Flatten the last axes into features, or add the missing one: `x.unsqueeze(-1)` for a series of single "
            "values.",
        ),
    ),
    (
        r"boolean index did not match indexed array along (?:axis|dimension) (?P<axis>\d+); (?:size of "
        r"axis|dimension) is (?P<size>\d+) (?:but size of corresponding boolean axis|but corresponding boolean "
        r"dimension) is (?P<mask>\d+)",
        Rule(
            "The mask in `<line>` (<here>) has <mask> entries in axis <axis>, the array <size>: the mask was made "
            "for another array, or before or after rows were removed.<operands>",
            "Make the mask from the same array just before it is used.",
        ),
    ),
    (
        r"all the input arrays must have same number of dimensions, but the array at index 0 has (?P<first>\d+) "
        r"dimension\(s\) and the array at index (?P<index>\d+) has (?P<second>\d+)",
        Rule(
            "`<call>` (<here>) joins arrays of <first> and <second> axes.<operands>",
            "Give the smaller one the missing axis: `array[None]` for a row, `array[:, None]` for a column.",
        ),
    ),
    (
        r"Tensors must have same number of dimensions: got (?P<first>\d+) and (?P<second>\d+)",
        Rule(
            "`<call>` (<here>) joins tensors of <first> and <second> axes.<operands>",
            "Give the one with fewer axes the missing one, with `.unsqueeze(dim)` or `x[:, None]`, or flatten the "
            "other; `torch.stack` is for tensors of the same shape that get a new axis.",
        ),
    ),
    (
        r"number of dims don't match in permute|permute\(sparse_coo\): number of dimensions in the tensor input "
        r"does not match the length of the desired ordering of dimensions i\.e\. input\.dim\(\) = (?P<dims>\d+) is "
        r"not equal to len\(dims\) = (?P<given>\d+)|axes don't match array",
        Rule(
            "`<call>` (<here>) orders another number of axes than `<base>` has: <base.shape>.<base.from>",
            "Name every axis of `<base>` once; an image without a batch axis has three: `permute(2, 0, 1)`.",
        ),
        Rule(
            "`<call>` (<here>) orders another number of axes than the tensor has: one more or fewer than the shape "
            "that it was written for, a missing batch axis for example.",
            "Name every axis once; an image without a batch axis has three: `permute(2, 0, 1)`.",
        ),
    ),
    (
        r"unflatten: Provided sizes \[(?P<sizes>[^\]]*)\] don't multiply up to the size of dim (?P<axis>-?\d+) "
        r"\((?P<size>\d+)\)",
        Rule(
            "`<call>` (<here>) splits axis <axis>, which has <size> entries, into (<sizes>), which multiply to another "
            "number.<base.from>",
            "Make the sizes multiply to <size>; -1 for one of them is calculated.",
        ),
    ),
    (
        r"Target and input must have the same number of elements\. target nelement \((?P<target>\d+)\) != input "
        r"nelement \((?P<output>\d+)\)",
        Rule("The outputs have <output> values and the targets <target> (<here>).<operands>", "Give both one shape."),
    ),
    (
        r"start \((?P<start>-?\d+)\) \+ length \((?P<length>\d+)\) "
        r"exceeds dimension size \((?P<size>\d+)\)",
        Rule(
            "`<call>` (<here>) takes <length> entries from position <start>, and the axis has only <size>.<operands>",
            "Stop at the last start that leaves enough: `size - length`, or take what is left: `min(length, size - "
            "start)`.",
        ),
    ),
    (
        r"mat1 and mat2 shapes cannot be multiplied \((?P<rows>\d+)x(?P<features>\d+) and "
        r"(?P<expected>\d+)x(?P<outputs>\d+)\)",
        Rule(
            "<layer> is built for <expected> features in query, key and value, and one of those in `<call>` "
            "(<here>) has <features>.<operands>",
            "Tell it the size of keys and values: `kdim=<features>, vdim=<features>`, or project them to <expected> "
            "before.",
            derive=lambda blanks: {} if blanks.failure.in_library("multi_head_attention_forward") else None,
        ),
        Rule(
            "`<call>` (<here>) multiplies rows of <features> values by a matrix with <expected> rows.<operands> "
            "<layer> is the module that did it.",
            "Change the layer to <features> inputs, or what feeds it to <expected>.",
        ),
    ),
    (
        r"selected index k out of range|kthvalue\(\): selected number k out of range for dimension",
        Rule(
            "`<call>` (<here>) asks for more values than the axis has: there are fewer classes or positions than "
            "k.<operands><base.from>",
            "Take at most as many as there are: `k=min(k, x.size(dim))`; top-5 accuracy needs five classes.",
        ),
        Rule(
            "`<call>` (<here>) asks for more values than the axis has: there are fewer classes or positions than "
            "k.<operands>",
            "Take at most as many as there are: `k=min(k, x.size(dim))`; top-5 accuracy needs five classes.",
        ),
    ),
    (
        r"X1 and X2 must have the same number of columns\. X1: (?P<first>\d+) X2: (?P<second>\d+)",
        Rule(
            "Distances need points with the same number of coordinates: `<x@0>` has <first> in its last axis, "
            "`<y@1>` has <second> (<here>: `<call>`).<x@0.from><y@1.from>",
            "Bring both to one size (the same encoder or projection), or transpose the one whose axes are swapped.",
        ),
    ),
    (
        r"bincount only supports 1-d non-negative integral inputs",
        Rule(
            "`<input@0>` in `<call>` (<here>) has negative numbers (-1 for unknown), fractions, or more than one "
            "axis.<input@0.from>",
            "Leave out what is negative and flatten: `torch.bincount(x[x >= 0].flatten().long())`.",
        ),
    ),
    (
        r"Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor",
        Rule(
            "`<call>` (<here>) names fewer axes than `<base>` has: `repeat` takes one number for each axis.<operands>",
            "Give one for each: `x.repeat(2, 1)`; `torch.repeat_interleave(x, 2, dim=0)` repeats along one axis.",
        ),
    ),
    (
        r"batch1 must be a 3D tensor|batch2 must be a 3D tensor",
        Rule(
            "`<call>` (<here>) multiplies batches of matrices, three axes each, and a tensor has another number of "
            "axes.<operands>",
            "Use `torch.matmul(a, b)` (or `a @ b`), which takes any number of axes, or add the batch axis with "
            "`.unsqueeze(0)`.",
        ),
    ),
    (
        r"1D tensors expected, but got (?P<first>\d)D and (?P<second>\d)D tensors|inconsistent tensor size, "
        r"expected tensor \[(?P<left>\d+)\] and src \[(?P<right>\d+)\] to have the same number of elements",
        Rule(
            "`torch.dot` takes two vectors of one length, and `<call>` (<here>) passes something else.<operands>",
            "Use `(a * b).sum(-1)` for each row, `a @ b` for matrices, or make both of one length.",
            calls=("dot",),
        ),
    ),
    (
        r"zero-dimensional tensor \(at position (?P<position>\d+)\) cannot be concatenated",
        Rule(
            "`<call>` (<here>) joins single numbers (tensors without an axis), and `cat` joins along an axis that is "
            "there.<tensors@0.from>",
            "Use `torch.stack(<tensors@0>)`, which makes the axis.",
            ("torch.cat(", "torch.stack("),
        ),
    ),
    (
        r"pad should be at most half of (?:effective )?kernel size",
        Rule(
            "The padding of <layer> is more than half of its kernel (<here>: `<call>`).",
            "Use a padding of at most `kernel_size // 2`.",
        ),
        Rule(
            "The padding is more than half of the kernel (<here>: `<call>`).",
            "Use a padding of at most `kernel_size // 2`.",
        ),
    ),
    (
        r"dropout probability has to be between 0 and 1, but got (?P<value>[\d.e-]+)",
        Rule(
            "`<call>` (<here>) sets the dropout to <value>; it is a share of the values, from 0 to 1.<p@0.from>",
            "Write the share: 0.5 for a half, 0.05 for 5 %.",
        ),
    ),
    (
        r"[Pp]adding_idx must be within num_embeddings",
        Rule(
            "`<call>` (<here>) has <num_embeddings@0> rows, numbered from 0, and the id of the padding is not among "
            "them.<num_embeddings@0.from>",
            "Count the padding as a row: one more in the first argument (`len(vocabulary) + 1`), or use another id.",
        ),
    ),
    (
        r"random_ expects 'from' to be less than 'to', but got from=(?P<low>-?\d+) >= to=(?P<high>-?\d+)|(?:low >= "
        r"high|empty range (?:for|in) rand\w+)",
        Rule(
            "`<call>` (<here>) draws from an empty range: the upper bound, which is not drawn itself, is not above "
            "the lower one.<high@0.from>",
            "Look at why the range is empty (a sample shorter than the crop or window), and use `max(1, ...)` or "
            "skip it.",
        ),
    ),
    (
        r"stft requires the return_complex parameter be given for real inputs",
        Rule(
            "`torch.stft` takes since torch 2.0 what it should return (<here>: `<call>`).",
            "Pass `return_complex=True` and take `.abs()` of the result (or `torch.view_as_real` for the old form).",
        ),
    ),
    (
        r"quantile\(\) input tensor must be either float or double dtype",
        Rule("`<call>` (<here>) gets whole numbers.<operands>", "Convert it: `x.float()`."),
    ),
    (
        r"normal expects (?:all elements of )?std >= 0\.0",
        Rule(
            "`<call>` (<here>) gets a negative standard deviation: an output of a network has to be made positive "
            "first.<operands>",
            "Use `F.softplus(x)` or `(0.5 * logvar).exp()`.",
        ),
    ),
    (
        r"Expected p_in >= 0 && p_in <= 1|Expected value argument \(Tensor of shape|to satisfy the constraint "
        r"(?P<constraint>\w+)",
        Rule(
            "`<call>` (<here>) gets a value that its distribution does not allow: a probability outside of 0 to 1, "
            "a scale that is not positive, or NaN.<operands>",
            "Make it valid first: `torch.sigmoid` or `softmax` for probabilities (or pass `logits=`), `F.softplus` "
            "for a scale; if it is NaN, look at where that begins.",
        ),
    ),
    (
        r"Negation, the `-` operator, on a bool tensor is not supported",
        Rule(
            "`<line>` (<here>) takes the negative of truth values.<operands>",
            "Use `~x` (not), or convert: `-x.float()`.",
        ),
    ),
    (
        r"Expected (?P<low>\d)D or (?P<high>\d)D \(batch mode\) tensor|non-empty (?P<few>\d)D or (?P<many>\d)D "
        r"\(batch mode\) tensor expected",
        Rule(
            "`<call>` (<here>) gets a tensor with too many or too few axes, or an empty one.<operands>",
            "Bring it to (batch, channels, height, width): `.unsqueeze(1)` adds channels, `.unsqueeze(0)` the batch, "
            "`.flatten(0, 1)` joins batch and time.",
        ),
    ),
    (
        r"Expected target size \[(?P<expected>[\d, ]*)\], got \[(?P<actual>[\d, ]*)\]",
        Rule(
            "Cross entropy takes the classes from axis 1 of the output, so it expects targets of [<expected>], and "
            "they are [<actual>] (<here>: `<call>`).<operands>",
            "Move the classes to axis 1: `output.transpose(1, 2)`, or flatten both: `output.flatten(0, 1)` and "
            "`target.flatten()`.",
        ),
    ),
    # learning rate, optimizer
    (
        r"ReduceLROnPlateau\.step\(\) missing 1 required positional argument: 'metrics'",
        Rule(
            "`<call>` (<here>) steps a ReduceLROnPlateau without the value that it watches: it lowers the learning "
            "rate when a metric stops getting better.<base.from>",
            "Pass the validation loss once an epoch, after the validation: `<base>.step(val_loss)`.",
            ("<base>.step()", "<base>.step(val_loss)"),
        ),
    ),
    (
        r"Tried to step (?P<step>\d+) times\. The specified number of total steps is (?P<total>\d+)",
        Rule(
            "`<base>` was built for <total> steps in all, and this is step <step> (<here>).<planned><base.from>",
            "<repair>",
            derive=planned_steps,
        ),
        Rule(
            "`<base>` was built for <total> steps in all, and this is step <step> (<here>): it is stepped more "
            "often than planned, once for each batch where the total counts epochs, or in a run that goes on after "
            "its end.<base.from>",
            "Give it the number of batches of all epochs: `total_steps=epochs * len(loader)`, or `epochs=` and "
            "`steps_per_epoch=len(loader)`; or step it once an epoch, outside of the batch loop.",
        ),
    ),
    (
        r"Expected (?P<expected>\d+) (?P<what>lr_lambdas|base_lr|max_lr|values for \w+), ?(?:but )?got (?P<actual>\d+)",
        Rule(
            "The optimizer has <expected> parameter groups, and `<call>` (<here>) gives <actual> of `<what>`: one "
            "for each group is needed.<optimizer@0.from>",
            "Pass one value for all groups, without a list, or a list of <expected>.",
        ),
    ),
    (
        r"^(?:TypeError: )?(?P<type>\w+) is not an Optimizer",
        Rule(
            "`<call>` (<here>) gets a <type> where a scheduler needs the optimizer whose learning rate it changes.",
            "Pass the optimizer as its first argument.",
        ),
    ),
    (
        r"optimizer must support momentum or beta1 with `cycle_momentum` option enabled",
        Rule(
            "`<call>` (<here>) changes the momentum along with the learning rate, and its optimizer has no momentum or "
            "betas.<optimizer@0.from>",
            "Switch that off: `cycle_momentum=False`, or use SGD with momentum or Adam.",
        ),
    ),
    (
        r"Nesterov momentum requires a momentum and zero dampening",
        Rule(
            "`<call>` (<here>) asks for Nesterov's form of the momentum without a momentum: its default is 0.",
            "Add one, `momentum=0.9`, or leave `nesterov` out.",
            ("nesterov=True", "momentum=0.9, nesterov=True"),
        ),
    ),
    (
        r"Invalid (?P<what>learning rate|weight_decay value|momentum value|epsilon value|beta parameter at index \d): "
        r"(?P<value>[^\n]+)",
        Rule(
            "`<call>` (<here>) sets the <what> to <value>, outside of what it may be: learning rate, weight decay "
            "and momentum are not negative, betas lie from 0 to just below 1.<lr@1.from>",
            "Correct the number where it is set (a sign, an exponent, a value of another option).",
        ),
    ),
    (
        r"some parameters appear in more than one parameter group",
        Rule(
            "The groups of `<call>` (<here>) share parameters: one group holds all parameters of a module "
            "(`model.parameters()`) and another one holds a part of the same module.",
            "Leave the parts out of the larger group: `[p for n, p in model.named_parameters() if not "
            'n.startswith("head")]`.',
        ),
    ),
    (
        r"^(?:KeyError: )?'params'$",
        Rule(
            "A group of `<call>` (<here>) lacks the key `params`: it is written in another way.",
            'Write each group as `{"params": module.parameters(), "lr": 1e-4}`.',
            calls=("SGD", "Adam", "AdamW", "RMSprop", "Adagrad"),
        ),
    ),
    # mixed precision
    (
        r"unscale_\(\) has already been called on this optimizer since the last update\(\)",
        Rule(
            "`<call>` (<here>) runs for every batch, but <update>, so the second batch unscales the same gradients "
            "again.",
            "Move `<call>` and the clipping into that `if`, before `<base>.step(...)`: all of them once per optimizer "
            "step.",
            derive=rare_update,
        ),
        Rule(
            "`<call>` (<here>) unscales the gradients a second time in one step: `scaler.update()`, which ends the "
            "step, was not called in between (it is missing, or is skipped while gradients are accumulated).",
            "Per step once and in this order: `scaler.unscale_(optimizer)`, clip, `scaler.step(optimizer)`, "
            "`scaler.update()`; with accumulation all of them only in the step that updates.",
        ),
    ),
    (
        r"(?:step|unscale_)\(\) (?:has already been called since the last update|is being called after step)\(\)",
        Rule(
            "`<call>` (<here>) comes again before `scaler.update()`, which has to follow each step.",
            "Call `scaler.update()` once after the `scaler.step(...)` of all optimizers.",
        ),
    ),
    (
        r"Attempted (?P<what>\w+) but _scale is None|No inf checks were recorded(?: for this optimizer| prior to "
        r"update)?",
        Rule(
            "`<call>` (<here>) found no scaled gradients: the loss did not go through the scaler (`loss.backward()` "
            "in place of `scaler.scale(loss).backward()`), or no parameter of this optimizer got a gradient.",
            "Use `scaler.scale(loss).backward()` before `scaler.step(optimizer)`, and check that the loss depends "
            "on the parameters of this optimizer.",
        ),
    ),
    (
        r"Attempting to unscale FP16 gradients",
        Rule(
            "The model's own weights are float16 (`.half()`, or loaded in half precision), so their gradients are "
            "too; a GradScaler needs float32 weights, and autocast makes the halves (<here>: `<call>`).",
            "Remove `.half()` (or load with `torch_dtype=torch.float32`) and run the forward pass under "
            "`torch.autocast`.",
        ),
    ),
    (
        r"binary_cross_entropy.{0,80}unsafe to autocast",
        Rule(
            "Under autocast the output of the sigmoid is half precision, whose logarithm is not safe, so BCE does "
            "not run there (<here>: `<call>`).",
            "Remove the sigmoid from the model and use `nn.BCEWithLogitsLoss()`.",
        ),
    ),
    # autograd
    (
        r"Inference tensors cannot be saved for backward",
        Rule(
            "A tensor of this computation was made under `torch.inference_mode()`, which leaves out what a backward "
            "pass needs (<here>: `<call>`).",
            "Use `torch.no_grad()` there (for values that training goes on with), or make a copy outside: `x.clone()`.",
        ),
    ),
    (
        r"(?:The differentiated Tensor at index (?P<index>\d+)|One of the differentiated Tensors) appears to not "
        r"have been used in the graph",
        Rule(
            "`<call>` (<here>) asks for the gradient by a tensor that the output was not computed from: it was copied, "
            "detached, or made after the forward pass.<inputs@1.from>",
            "Compute the output from that very tensor (with `requires_grad_()` set before the forward pass), or pass "
            "`allow_unused=True`, which returns None for it.",
        ),
    ),
    (
        r"function (?P<function>\w+) returned an incorrect number of gradients \(expected (?P<expected>\d+), got "
        r"(?P<actual>\d+)\)",
        Rule(
            "`backward` of <function> returns <actual> gradients, and its `forward` takes <expected> arguments "
            "besides `ctx`: each needs one.",
            "Return <expected> values, `None` for arguments without a gradient: `return grad, None`.",
        ),
    ),
    (
        r"Legacy autograd function with non-static forward method is deprecated",
        Rule(
            "The function of `<call>` (<here>) is written in the old way: `forward` and `backward` are methods of "
            "an object.",
            "Make both static with `@staticmethod` and `ctx` as first argument, and call `Function.apply(x)`.",
        ),
    ),
    (
        r"Mismatch in shape: grad_output\[0\] has a shape of torch\.Size\(\[(?P<given>[\d, ]*)\]\) and "
        r"output\[0\] has a shape of torch\.Size\(\[(?P<output>[\d, ]*)\]\)",
        Rule(
            "`<call>` (<here>) starts the backward pass with a gradient of [<given>] for an output of [<output>].",
            "Pass a gradient of the shape of the output: `torch.ones_like(output)`, or reduce to one number first.",
        ),
    ),
    # data sets and loaders
    (
        r"^(?:AssertionError: )?Size mismatch between tensors",
        Rule(
            "`<call>` (<here>) joins tensors that do not have the same number of samples in their first axis: "
            "`<a@0>` is <a@0.shape>, `<b@1>` is <b@1.shape>.<a@0.from><b@1.from>",
            "Make both from the same rows: the same split, filter and window for inputs and targets.",
            calls=("TensorDataset",),
        ),
        Rule(
            "`<call>` (<here>) joins tensors that do not have the same number of samples in their first axis.",
            "Print their shapes, and make both from the same rows.",
        ),
    ),
    (
        r"DataLoader with IterableDataset: expected unspecified (?P<option>\w+) option, but got",
        Rule(
            "`<dataset@0>` is an IterableDataset, a stream without positions, so a loader cannot use `<option>` on "
            "it (<here>).",
            "Leave `<option>` out; shuffle inside of `__iter__` (a buffer, or the order of the files), or make it a "
            "Dataset with `__len__` and `__getitem__`.",
        ),
    ),
    (
        r"batch_size should be a positive integer value, but got batch_size=(?P<size>\S+)",
        Rule(
            "`<call>` (<here>) gets the batch size <size>, which is not a whole number above 0.<batch_size@1.from>",
            "Use `//` or `int(...)` where it is calculated, at least 1.",
        ),
    ),
    (
        r"num_samples should be a positive integer value, but got num_samples=(?P<size>(?!0\b)\S+)",
        Rule(
            "The number of samples is <size>, which is not a whole number above 0 (<here>: `<call>`).",
            "Use `int(...)` or `//` where it is calculated.",
        ),
    ),
    (
        r"'(?P<type>float|NoneType|str|Tensor)' object cannot be interpreted as an integer",
        Rule(
            "`<call>` (<here>) needs a whole number and gets a <type>.<a@0.from>",
            "Use `//` in place of `/`, or `int(...)`; a `__len__` has to return a whole number.",
        ),
        Rule(
            "A whole number is needed in `<line>` (<here>), and it is a <type>.",
            "Use `//` in place of `/`, or `int(...)`; a `__len__` has to return a whole number.",
        ),
    ),
    (
        r"invalid multinomial distribution \(sum of probabilities <= 0\)|probability tensor contains either `inf`, "
        r"`nan` or element < 0",
        Rule(
            "`<call>` (<here>) draws by probabilities, and `<input@0>` is not one: it holds negative numbers, NaN "
            "or only zeros. Scores of a model (logits) have to go through a softmax first.<input@0.from>",
            "Use `torch.softmax(<input@0>, dim=-1)` (and check for NaN, and that not every score was masked).",
        ),
    ),
    (
        r"Expected a 'cuda' device type for generator but found 'cpu'|Expected a 'cpu' device type for generator "
        r"but found 'cuda'",
        Rule(
            "The generator is on another device than what it draws (<here>: `<call>`); with "
            "`torch.set_default_device` the sampler of a loader draws there too.",
            "Make it there: `torch.Generator(device=device)`, and pass it to the DataLoader and `random_split`.",
        ),
    ),
    (
        r"Found no NVIDIA driver on your system|No CUDA GPUs are available",
        *(
            Rule(
                f"`<call>` (<here>) asks for a GPU, and torch sees none on this machine.{more}",
                'Take what there is: `device = torch.device("cuda" if torch.cuda.is_available() else "cpu")`. If the '
                "machine has a GPU, its driver is missing or hidden from this process: run `nvidia-smi`.",
            )
            for more in ("<device@0.from>", "")
        ),
    ),
    (
        r"Torch not compiled with CUDA enabled",
        *(
            Rule(
                f"`<call>` (<here>) asks for a GPU, and this torch was built for the CPU only.{more}",
                'Take what there is: `device = torch.device("cuda" if torch.cuda.is_available() else "cpu")`. For a '
                "GPU of this machine, install a torch that was built for CUDA.",
            )
            for more in ("<device@0.from>", "")
        ),
    ),
    # images
    (
        r"Required crop size \((?P<height>\d+), (?P<width>\d+)\) is larger than input image size \((?P<rows>\d+), "
        r"(?P<columns>\d+)\)",
        Rule(
            "An image is <rows> x <columns>, smaller than the crop of <height> x <width>.",
            "Resize before the crop, or pad: `RandomCrop((<height>, <width>), pad_if_needed=True)`.",
        ),
    ),
    (
        r"pic should be 2/3 dimensional\. Got (?P<dims>\d+) dimensions",
        Rule(
            "`<call>` (<here>) makes one picture and gets a tensor of <dims> axes, a whole batch.",
            "Take one image of it: `batch[0]`.",
        ),
    ),
    (
        r"cannot write mode (?P<mode>\w+) as (?P<format>\w+)",
        Rule(
            "A picture of the mode <mode> cannot be stored as <format> (<here>: `<call>`).",
            'Convert it first: `image.convert("RGB")`, or store a PNG.',
        ),
    ),
    (
        r"cannot identify image file (?P<path>\S.*)",
        Rule(
            "Pillow cannot read <path> as a picture: it is cut off, empty, another format, or an error "
            "page saved under that name (<here>: `<call>`).",
            "Look at its first bytes and size; leave such files out of the list when the data set is made.",
        ),
    ),
    # numpy
    (
        r"assignment destination is read-only|output array is read-only",
        Rule(
            "`<line>` (<here>) writes into an array that only looks at other memory: from `broadcast_to`, "
            "`np.asarray` of a picture, `np.frombuffer`, a memory map, or pandas' `.values`.",
            "Take a copy first: `array = array.copy()` (`np.array(image)` in place of `np.asarray(image)`).",
        ),
    ),
    (
        r"At least one stride in the given numpy array is negative|some of the strides of a given numpy array are "
        r"negative",
        Rule(
            "`<a@0>` was flipped or reversed (`[::-1]`, `np.flip`, `np.rot90`), which only turns the direction in "
            "which numpy reads; torch cannot take that over (<here>: `<call>`).<a@0.from>",
            "Copy it first: `torch.from_numpy(<a@0>.copy())`.",
            ("(<a@0>)", "(<a@0>.copy())"),
        ),
        Rule(
            "An array was flipped or reversed (`[::-1]`, `np.flip`), which only turns the direction in which numpy "
            "reads; torch cannot take that over (<here>).",
            "Copy it after the flip: `array.copy()`.",
        ),
    ),
    (
        r"given numpy array has byte order different from the native byte order",
        Rule(
            "The file that `<a@0>` comes from stores its numbers in the other byte order, which torch does not take "
            "(<here>).<a@0.from>",
            'Convert it: `<a@0>.astype("float32")`.',
        ),
    ),
    (
        r"only integer scalar arrays can be converted to a scalar index",
        Rule(
            "`<call>` (<here>) passes several arrays one by one, so the second is taken for the axis.",
            "Pass them as one list: `<func>([...])`.",
            calls=("concatenate", "stack", "vstack", "hstack"),
        ),
        Rule(
            "`<line>` (<here>) uses an array where one index is needed: a Python list cannot be indexed by an array.",
            "Make an array of the list (`np.array(values)[index]`), or loop over the index.",
        ),
    ),
    (
        r"Cannot interpret '(?P<what>[^']+)' as a data type",
        Rule(
            "`<call>` (<here>) takes <what> for the dtype: the shape has to be one argument.",
            "Put the sizes in parentheses: `<func>((<a@0>, <what>))`.",
            ("<call>", "<func>((<a@0>, <what>))"),
        ),
    ),
    (
        r"Cannot take a larger sample than population when (?:replace is False|'?replace=False'?)|Sample larger "
        r"than population",
        Rule(
            "`<call>` (<here>) draws more than there are without putting any back.<a@0.from>",
            "Draw at most as many as there are (`min(n, len(x))`), or with `replace=True` (`random.choices`).",
        ),
    ),
    (
        r"Singular matrix|The diagonal element \d+ is zero|the input matrix is singular",
        Rule(
            "`<a@0>` in `<call>` (<here>) has no inverse: some of its rows or columns depend on each other, or "
            "there are fewer samples than features.<a@0.from>",
            "Use `pinv` or `lstsq`, or add a small number to the diagonal: `+ 1e-6 * eye`.",
        ),
    ),
    (
        r"Python integer (?P<value>-?\d+) out of bounds for (?P<dtype>\w+)|value cannot be converted to type "
        r"(?P<type>\w+) without overflow",
        Rule(
            "`<line>` (<here>) puts <value> into <dtype>, which cannot hold it; numpy 2 does not wrap around or "
            "widen the type by itself.",
            "Convert the array first (`array.astype(np.int32)`), or keep the value in the range of <dtype>.",
        ),
        Rule(
            "`<line>` (<here>) puts a number into a tensor whose type cannot hold it; `-1e9` or `1e9` is too large "
            "for float16.",
            "Use `torch.finfo(x.dtype).min` in place of a large number, or a wider type.",
        ),
    ),
    (
        r"slice indices must be integers or None or have an __index__ method",
        Rule(
            "A slice in `<line>` (<here>) has a bound that is not a whole number: a share of a length (`0.8 * "
            "len(x)`, `n / 2`) is a float.",
            "Make it whole: `int(...)` or `//`.",
        ),
    ),
    (
        r"Cannot cast ufunc '(?P<ufunc>\w+)' output from dtype\('(?P<actual>\w+)'\) to dtype\('(?P<expected>\w+)'\)",
        Rule(
            "`<line>` (<here>) stores a <actual> result in place into a <expected> array, which would lose its "
            "fractions.",
            "Make the array floating point where it is made (`.astype(np.float32)`), or write a new one: `x = x / n`.",
        ),
    ),
    (
        r"cannot select an axis to squeeze out which has size not equal to one",
        Rule(
            "`<call>` (<here>) removes an axis that has more than one entry: `<base>` is <base.shape>.<base.from>",
            "Squeeze an axis of size 1, or take one entry: `x[0]`.",
        ),
        Rule(
            "`<call>` (<here>) removes an axis that has more than one entry.",
            "Squeeze an axis of size 1, or take one entry: `x[0]`.",
        ),
    ),
    (
        r"Object arrays cannot be loaded when allow_pickle=False",
        Rule(
            "The file of `<call>` (<here>) holds Python objects (a dict, or arrays of different lengths), which "
            "numpy stores as a pickle and does not load by default.",
            "Pass `allow_pickle=True` if the file is yours (`.item()` takes a dict out of it), or store plain "
            "arrays with `np.savez(file, a=a, b=b)`.",
            ("<call>", "np.load(<a@0>, allow_pickle=True)"),
        ),
    ),
    (
        r"(?P<key>\S+) is not a file in the archive",
        Rule(
            "The npz file has no array `<key>` (<here>).<base.from>",
            "Print `data.files` for the names that it has; arrays saved without a name are called arr_0, arr_1.",
        ),
        Rule(
            "The npz file has no array `<key>` (<here>).",
            "Print `data.files` for the names that it has; arrays saved without a name are called arr_0, arr_1.",
        ),
    ),
    (
        r"could not determine the shape of object type '(?P<type>\w+)'",
        Rule(
            "`<a@0>` is a pandas <type>, and `<call>` (<here>) takes lists and arrays.<a@0.from>",
            "Convert it: `torch.tensor(<a@0>.to_numpy(), dtype=torch.float32)`, after text columns were encoded as "
            "numbers.",
            ("<a@0>", "<a@0>.to_numpy()"),
        ),
    ),
    # pandas
    (
        r"The truth value of a (?P<type>Series|DataFrame) is ambiguous",
        Rule(
            "`<line>` (<here>) needs one truth value and has one for each row; `and`, `or`, `if`, and comparisons "
            "that `&` binds before them do that.",
            "Compare in parentheses and join with `&` or `|`: `(t.a > 1) & (t.a < 3)`; `.any()`, `.all()` or "
            "`.empty` for one answer.",
        ),
    ),
    (
        r"Length of values \((?P<values>\d+)\) does not match length of index \((?P<rows>\d+)\)",
        Rule(
            "`<line>` (<here>) writes <values> values into a table of <rows> rows: one side was filtered, dropped "
            "or predicted for another part of the data.",
            "Make both from the same rows (`len(table)`), or join by the index.",
        ),
    ),
    (
        r"Location based indexing can only have",
        Rule(
            "`<line>` (<here>) uses `.iloc`, which takes positions only, with a name.",
            'Use `.loc[rows, "name"]`, or the position of the column.',
        ),
    ),
    (
        r"single positional indexer is out-of-bounds",
        Rule(
            "`<line>` (<here>) asks for a row past the end of the table: positions go from 0 to its length - "
            "1.<operands>",
            "Use a position below `len(table)`; after a filter the table is shorter than before.",
        ),
    ),
    (
        r"(?P<names>\[.*\]) not found in axis",
        Rule(
            "`<call>` (<here>) looks for <names> among the row labels: without an axis `drop` removes rows.<base.from>",
            "Name the columns: `<base>.drop(columns=<a@0>)`.",
            ("<call>", "<base>.drop(columns=<a@0>)"),
            _rows_by_name,
        ),
    ),
    (
        r"No columns to parse from file",
        Rule(
            "The file that `<call>` (<here>) reads is empty.<a@0.from>",
            "Write it first and close it (a `with` block), or look at the path.",
        ),
    ),
    (
        r"Error tokenizing data\. C error: Expected (?P<expected>\d+) fields in line (?P<line_number>\d+), saw "
        r"(?P<actual>\d+)",
        Rule(
            "Line <line_number> of the file has <actual> fields, the lines before have <expected> (<here>: "
            "`<call>`): a separator inside of a text, another separator, or lines above the header.",
            'Set `sep`, `skiprows` or `quotechar`, or skip such lines: `on_bad_lines="skip"`.',
        ),
    ),
    (
        r"Cannot perform reduction '(?P<what>\w+)' with string dtype|could not convert string .* to "
        r"numeric|unsupported operand type\(s\) for \+: 'float' and 'str'",
        Rule(
            "`<call>` (<here>) computes over columns of text.",
            "Take the numeric columns: `numeric_only=True`, or convert the column with `pd.to_numeric(...)`.",
        ),
    ),
    # checkpoints
    (
        r"Expected state_dict to be dict-like, got <class '(?:str|pathlib\.\w+|_io\.\w+)'>",
        Rule(
            "`<call>` (<here>) gets the path of the file, and `load_state_dict` needs what is in it.",
            "Load the file first: `<func>(torch.load(<state@0>))`.",
            ("<call>", "<func>(torch.load(<state@0>))"),
        ),
    ),
    (
        r"Expected state_dict to be dict-like, got <class '(?P<type>method|builtin_function_or_method)'>",
        Rule(
            "`<call>` (<here>) gets the method `state_dict` itself: it was not called, here or where the file was "
            "saved.<state@0.from>",
            "Write `model.state_dict()` with parentheses, and save the file again if that is where it lacks them.",
        ),
    ),
    (
        r"Expected state_dict to be dict-like, got <class '(?P<type>[\w.]+)'>",
        Rule(
            "`<call>` (<here>) gets an object of <type>, and `load_state_dict` needs its state: the file holds a whole "
            "model, or the model itself was passed.<state@0.from>",
            "Pass its state: `<func>(<state@0>.state_dict())`.",
            ("(<state@0>)", "(<state@0>.state_dict())"),
        ),
    ),
    (
        r"PytorchStreamReader failed reading (?:zip archive|file)|unexpected EOF, expected \d+ more bytes|"
        r"(?:file|storage) (?:has wrong byte size|is truncated)|(?:EOFError: )?Ran out of input|^EOFError",
        Rule(
            "The file of `<call>` (<here>) is incomplete: it is empty or ends too early, because the program that "
            "wrote it was stopped, the disk was full, or a download broke off.<f@0.from>",
            "Use an earlier file or copy it again (compare its size); from now on write to a temporary name and rename "
            "it with `os.replace` when it is complete.",
            calls=("load",),
        ),
    ),
    (
        r"invalid load key, '(?P<key>[^']+)'|Unsupported operand (?P<operand>\d+)|"
        r"Weights only load failed\. In PyTorch",
        Rule(
            "torch cannot read the file of `<call>` (<here>) as a checkpoint. Often it is a text: one that begins with "
            "`<` is a web page (an error or login page was saved), one with `v` the pointer of a file that Git LFS "
            "has not fetched.<f@0.from>",
            "Look at it (`head -c 200 FILE`); download the file itself, or run `git lfs pull`.",
            calls=("load",),
        ),
    ),
    (
        r"^(?:KeyError: )?'(?:param_groups|state)'$",
        Rule(
            "`<call>` (<here>) gives the optimizer a state that has no `param_groups`: it is that of a model, or a "
            "whole checkpoint.<state_dict@0.from>",
            'Load what `optimizer.state_dict()` returned: `<base>.load_state_dict(checkpoint["optimizer"])`.',
            calls=("load_state_dict",),
        ),
    ),
    # files and texts
    (
        r"\[Errno 21\] Is a directory: '(?P<path>[^']*)'",
        Rule(
            "`<path>` is a folder, and `<call>` (<here>) needs a file.<f@0.from>",
            'Name the file in it: `os.path.join("<path>", "model.pt")`.',
        ),
    ),
    (
        r"\[Errno 20\] Not a directory: '(?P<path>[^']*)'",
        Rule(
            "A part of `<path>` is a file and not a folder (<here>: `<call>`); among the entries of a folder there "
            "may be files such as .DS_Store.",
            "Skip what is not a folder: `if os.path.isdir(path):`.",
        ),
    ),
    (
        r"\[Errno 17\] File exists: '(?P<path>[^']*)'",
        Rule(
            "`<path>` exists already, from an earlier run (<here>: `<call>`).",
            "Allow that: `os.makedirs(path, exist_ok=True)`, or give every run a folder of its own.",
            ("<call>", "<func>(<name@0>, exist_ok=True)"),
        ),
    ),
    (
        r"\[Errno 13\] Permission denied: '(?P<path>[^']*)'",
        Rule(
            "This user may not write or read `<path>` (<here>: `<call>`).",
            "Use a folder that belongs to the user, or change its owner; an absolute path that begins with `/` is not "
            "below the program's folder.",
        ),
    ),
    (
        r"Object of type (?P<type>\w+) is not JSON serializable",
        Rule(
            "`<call>` (<here>) writes a <type>, and JSON knows only Python's own numbers, texts, lists and dicts. "
            "Results of numpy and torch are not Python's own numbers.<obj@0.from>",
            "Convert where the value is stored: `float(x)` or `x.item()` for one number, `x.tolist()` for many, or "
            "pass `default=float`.",
        ),
    ),
    (
        r"Extra data: line (?P<line_number>\d+) column",
        Rule(
            "The file of `<call>` (<here>) holds more than one JSON value, one in each line (JSON lines).",
            "Read it line by line: `[json.loads(line) for line in file]`.",
        ),
    ),
    (
        r"Expecting (?:value|property name enclosed in double quotes): line (?P<line_number>\d+) column "
        r"(?P<column>\d+)",
        Rule(
            "The text that `<call>` (<here>) reads is not JSON from line <line_number>, column <column> on: it is "
            "empty, has single quotes, a comma too much, NaN, or is an error page.",
            "Print its first characters; a Python dict printed with single quotes is read with `ast.literal_eval`, an "
            "empty file was not written to its end.",
        ),
    ),
    (
        r"'(?P<codec>[\w-]+)' codec can't decode byte (?P<byte>0x\w+) in position (?P<position>\d+)",
        Rule(
            "The file is not <codec> text at position <position> (<here>: `<call>`): it was written in another "
            "encoding, or it is not text at all (a picture, an archive, a pickle).",
            'Name its encoding: `encoding="latin-1"` (or "cp1252", "utf-16"); open other files with "rb".',
        ),
    ),
    (
        r"invalid literal for int\(\) with base 10: (?P<text>.+)",
        Rule(
            "`<call>` (<here>) makes a whole number of the text <text>, which is not one.<x@0.from>",
            "Use `float(...)` for numbers with a point or an exponent (`int(float(x))`), and strip or skip other "
            "texts.",
        ),
    ),
    (
        r"int\(\) argument must be a string, a bytes-like object or a real number, not '(?P<type>\w+)'",
        Rule(
            "`<x@0>` in `<call>` (<here>) is a <type>: nothing was set. `os.environ.get` and `dict.get` return None "
            "for a name that is missing.<x@0.from>",
            "Give a default, `get(name, 0)`, or set the value before the start.",
        ),
    ),
    (
        r"time data (?P<text>'.*') does not match format (?P<format>'.*')",
        Rule(
            "The date <text> is not written as <format> says (<here>: `<call>`).",
            "Correct the format (separators, the order of day and month), or use `pd.to_datetime(x)`.",
        ),
    ),
    # distributed
    (
        r"environment variable (?P<variable>\w+) expected, but not set",
        Rule(
            "`<call>` (<here>) takes its settings from the environment, and `<variable>` is not there: the script was "
            "started with `python` and not by a launcher, which sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.",
            "Start it with `torchrun --nproc_per_node=N train.py`, or skip the process group where WORLD_SIZE is not "
            "set.",
        ),
    ),
    (
        r"Default process group has not been initialized",
        Rule(
            "`<call>` (<here>) needs the group of processes, and `init_process_group` was not called before in this "
            "process.",
            "Call `torch.distributed.init_process_group(backend)` first (under `torchrun`); in a run with one "
            "process ask `torch.distributed.is_initialized()` before it.",
        ),
    ),
    (
        r"DistributedDataParallel is not needed when a module doesn't have any parameters that require a gradient",
        Rule(
            "All parameters of the module in `<call>` (<here>) are frozen, so there is nothing to synchronise.",
            "Unfreeze what should learn before it is wrapped, or use the module without DDP.",
        ),
    ),
    (
        r"x and y must have same first dimension, but have shapes \((?P<x>[\d, ]*)\) and \((?P<y>[\d, ]*)\)",
        Rule(
            "`<call>` (<here>) draws one curve of (<x>) positions and (<y>) values: one of the two lists is "
            "longer.<x@0.from><y@1.from>",
            "Give both the same length: `range(len(values))` for the positions.",
        ),
    ),
    (
        r"^SystemExit: 2",
        Rule(
            "`<call>` (<here>) reads the command line, and in a notebook that is the one of the kernel (`-f "
            "kernel.json`), or a required option is missing.",
            'Pass the options yourself: `<func>([])` uses the defaults, `<func>(["--lr", "0.1"])` sets one.',
            calls=("parse_args",),
        ),
    ),
    # torch.func and torch.compile
    (
        r"vmap: called random operation while in randomness error mode",
        Rule(
            "<layer> draws random numbers inside of `vmap` (<here>: `<line>`), since the model is in training mode; "
            "`vmap` does not do that unless it is asked to.",
            "Call `.eval()` on the model first if its dropout should be off here, or choose: `vmap(..., "
            'randomness="different")` (or `"same"` for all samples).',
        ),
        Rule(
            "`<line>` (<here>) draws random numbers inside of `vmap`, which does not do that unless it is asked to.",
            'Choose: `vmap(..., randomness="different")` (or `"same"` for all samples), or draw them before; a model '
            "with dropout may only lack `.eval()`.",
        ),
    ),
    (
        r"Data-dependent branching",
        Rule(
            "`<branch>` (<place>) depends on the value of a tensor, <from>which `torch.compile` does not know while it "
            "traces; `fullgraph=True` forbids it to split the graph there.",
            "Remove `fullgraph=True`, or compute both sides: `torch.where(<test>, ..., ...)` (or `torch.cond`); with "
            "`if` and a setting, compare a Python number.",
            derive=branch_on_a_tensor,
        ),
    ),
    (
        r"All arrays must be of the same length|arrays must all be same length",
        Rule(
            "The columns of `<call>` (<here>) have different lengths: <lengths>.",
            "Give every column one value for each row.",
            derive=column_lengths,
        ),
    ),
    # Python
    (
        r"unsupported operand type\(s\) for [^:]+: '(?P<type>generator|map|filter|zip)' and",
        Rule(
            "`<call>` (<here>) gets a <type>, which has no values until it is looped over.",
            "Make a list of it: `<func>([...])`, or `<func>(list(<a@0>))`.",
        ),
    ),
    (
        r"dictionary changed size during iteration|dictionary keys changed during iteration|Set changed size during "
        r"iteration|list changed size during iteration|\w+ mutated during iteration",
        Rule(
            "`<change>` (<place>) changes `<looped>` inside of the loop that goes through it (`<head>`, <here>).",
            "Loop over a copy: `for <target> in <copy>:`, or collect the changes in a new dict.",
            ("in <written>:", "in <copy>:"),
            derive=changed_in_its_loop,
        ),
        Rule(
            "The loop of `<line>` (<here>) adds or removes entries of what it loops over.",
            "Loop over a copy: `for key in list(d):`.",
        ),
    ),
    (
        r"unhashable type: '(?P<type>[\w.]+)'",
        Rule(
            "`<line>` (<here>) uses a <type> as a key of a dict or an element of a set, and a <type> can change, so "
            "it cannot be one.<operands>",
            "Make it fixed first: `tuple(x)` for a list, `x.item()` or `x.tolist()` for an array of one axis; "
            "`{...}` around a dict makes a set.",
        ),
    ),
    (
        r"'(?P<type>tuple|str|bytes)' object does not support item assignment",
        Rule(
            "`<line>` (<here>) changes one entry of a <type>, which cannot be changed.",
            "Make a list of it first (`list(x)`), or build a new one.",
        ),
    ),
    (
        r"unsupported format string passed to (?P<type>[\w.]+)\.__format__",
        Rule(
            "`<line>` (<here>) formats a <type> like a number: nothing was computed (NoneType), or it holds several "
            "values (Tensor, ndarray, list).<operands>",
            "Format a number: `x.item()` for a tensor of one value, `x.mean().item()` for several; test for None "
            "first.",
        ),
    ),
    (
        r"(?P<what>not enough|too many|not all) arguments (?:for format string|converted during string formatting)",
        Rule(
            "The format in `<line>` (<here>) has another number of `%` marks than there are values.",
            "Give one value for each mark, or use an f-string.",
        ),
    ),
    (
        r"(?P<function>max|min)\(\) (?:arg is an empty sequence|iterable argument is empty)|zero-size array to "
        r"reduction operation (?P<operation>\w+)|(?:max|min|argmax|argmin)\(\): Expected reduction dim(?: to be "
        r"specified for input\.numel\(\) == 0)?",
        Rule(
            "`<call>` (<here>) looks for the largest or smallest of nothing: it is empty.<x@0.from><base.from>",
            "Look at why it is empty (a filter, a threshold, a folder), or give a default: `max(values, default=0)`.",
        ),
        Rule(
            "`<call>` (<here>) looks for the largest or smallest of nothing: it is empty.<x@0.from>",
            "Look at why it is empty (a filter, a threshold, a folder), or give a default: `max(values, default=0)`.",
        ),
    ),
    (
        r"too many indices for tensor of dimension (?P<dims>\d+)|too many indices for array: array is (?P<axes>\d+)-"
        r"dimensional, but (?P<given>\d+) were indexed",
        Rule(
            "`<line>` (<here>) uses more indices than the tensor or array has axes.<operands> An axis was lost on "
            "the way (by `squeeze`, an index, a mean) or was never there.",
            "Drop an index, or keep the axis: `x[:, None]`, `keepdim=True`, a slice `0:1` in place of `0`.",
        ),
    ),
    (
        r"only integer tensors of a single element can be converted to an index",
        Rule(
            "`<line>` (<here>) uses a tensor of several or fractional values where one whole number belongs.<operands>",
            "Take one number: `int(x)` or `x.item()`; a list of indices works on tensors and arrays only.",
        ),
    ),
    (
        r"'(?P<type>torch\.Size|Size|tuple)' object is not callable",
        Rule(
            "`<func>` is a value and not a method, and `<call>` (<here>) calls it.",
            "Use square brackets: `<func>[<i@0>]`, or for a tensor the method: `.size(<i@0>)`.",
            ("<call>", "<func>[<i@0>]"),
        ),
    ),
)
COMPILED = tuple((re.compile(pattern), rules) for pattern, *rules in MESSAGES)


def explain_known(failure: Failure) -> Explanation | None:
    """Return what a known message means in this program."""
    for pattern, rules in COMPILED:
        match = pattern.search(failure.message) or pattern.search(f"{failure.type}: {failure.message}")
        if match:
            parts = {name: text for name, text in match.groupdict().items() if text is not None}
            explanation = explain_by(tuple(rules), parts, failure)
            if explanation is not None:
                return explanation
    return None
