"""The messages of libraries as typed facts: which kind of fault, and its numbers, shapes and names.

Every regular expression of the explanations is here. Groups are numbers where they are digits, shapes where they look
like one, else text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

BLANK = re.compile(r"<([a-z_]\w*(?:@\d+)?(?:\.\w+)?)>")  # in the sentences of rules.py
INTEGER = re.compile(r"(?<![A-Za-wyz_\d])\d+")  # also in 90x7, not in mat1
SHAPE = r"(?:torch\.Size\()?\[?\(?(?P<{}>[\d, x]*)\)?\]?\)?"


@dataclass(frozen=True)
class Fact:
    """One kind of fault and what its message says; an attribute that the message lacks is None."""

    kind: str
    values: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        return self.values.get(name)


def shape(name: str) -> str:
    """Return a pattern for a shape in any of the forms that libraries print."""
    return rf"(?:torch\.Size\()?[\[(](?P<{name}>\d*(?:(?:, ?| x |x)\d+)*),?[\])]\)?"


def dtype(name: str) -> str:
    """Return a pattern for the name of a type: `Float`, `c10::BFloat16`, `long int`, `torch.float32`, `CPUHalfType`."""
    return rf"(?:c10::|torch\.)?(?P<{name}>(?!c10::|torch\.)\w+(?: int|<\w+>)?)"


PATTERNS: dict[str, tuple[str, ...]] = {
    # shapes
    "matmul": (
        r"mat1 and mat2 shapes cannot be multiplied \((?P<rows>\d+)x(?P<features>\d+) and "
        r"(?P<expected>\d+)x(?P<outputs>\d+)\)",
        r"size mismatch, m1: \[(?P<rows>\d+) x (?P<features>\d+)\], m2: \[(?P<expected>\d+) x (?P<outputs>\d+)\]",
        r"size mismatch, got (?P<rows>\d+), \d+x(?P<expected>\d+),(?P<features>\d+)",
        rf"shapes {shape('left')} and {shape('right')} not aligned",
        r"mismatch in its core dimension 0.*\(size (?P<expected>\d+) is different from (?P<features>\d+)\)",
        r"size mismatch, got input \((?P<rows>\d+)\), mat \((?P<expected_rows>\d+)x(?P<features>\d+)\), vec "
        r"\((?P<expected>\d+)\)",
    ),
    "batched_matmul": (
        rf"Expected size for first two dimensions of batch2 tensor to be: {shape('expected')} but got: "
        rf"{shape('actual')}",
        rf"batch1 and batch2 must have same number of batches, got {shape('left')} and {shape('right')}",
    ),
    "conv_channels": (
        rf"Given (?:groups=(?P<groups>\d+)|transposed=1), weight of size {shape('weight')}, expected "
        rf"input{shape('input')} to have (?P<expected>\d+) channels, but got (?P<channels>\d+) channels",
        rf"Given groups=(?P<groups>\d+), weight{shape('weight')}, so expected input{shape('input')} to have "
        r"(?P<expected>\d+) channels, but got (?P<channels>\d+) channels",
        r"running_mean should contain (?P<channels>\d+) elements not (?P<expected>\d+)",
        r"Expected weight to be a vector of size equal to the number of channels in input, but got weight of shape "
        rf"{shape('weight')} and input of shape {shape('input')}",
    ),
    "conv_dimensions": (
        r"Expected (?P<unbatched>\d)D \(unbatched\) or (?P<batched>\d)D \(batched\) input to (?P<operator>\w+), "
        rf"but got input of size: {shape('input')}",
        rf"Expected (?P<batched>\d)-dimensional input for \d-dimensional weight {shape('weight')}, but got "
        rf"\d-dimensional input of size {shape('input')} instead",
        r"expected (?P<unbatched>\d)D or (?P<batched>\d)D input \(got (?P<actual>\d)D input\)",
        r"expected (?P<batched>\d)D input \(got (?P<actual>\d)D input\)",
    ),
    "concatenate": (
        r"Sizes of tensors must match except in dimension (?P<axis>\d+)\. Expected size (?P<first>\d+) but got size "
        r"(?P<second>\d+) for tensor number (?P<position>\d+) in the list",
        r"Sizes of tensors must match except in dimension (?P<axis>\d+)\. Got (?P<first>\d+) and (?P<second>\d+) in "
        r"dimension (?P<differing_axis>\d+)",
        r"all the input array dimensions except for the concatenation axis must match exactly, but along dimension "
        r"(?P<differing_axis>\d+), the array at index \d+ has size (?P<first>\d+) and the array at index "
        r"(?P<position>\d+) has size (?P<second>\d+)",
    ),
    "stack": (
        rf"stack expects each tensor to be equal size, but got {shape('first_shape')} at entry 0 and "
        rf"{shape('second_shape')} at "
        r"entry (?P<position>\d+)",
        r"(?P<arrays>all input arrays must have the same shape)",
        r"invalid argument 0: Sizes of tensors must match except in dimension 0\. Got (?P<first_size>\d+) and "
        r"(?P<second_size>\d+) in dimension (?P<axis>\d+)",
        r"(?P<lists>each element in list of batch should be of equal size)",
        r"(?P<resize>Trying to resize storage that is not resizable)",
    ),
    "normalize": (
        r"(?P<normalize>output with shape \[(?P<left>[\d, ]+)\] doesn't match the broadcast shape \[(?P<right>[\d, "
        r"]+)\])",
    ),
    "broadcast": (
        r"The size of tensor a \((?P<first>\d+)\) must match the size of tensor b \((?P<second>\d+)\) at "
        r"non-singleton dimension (?P<axis>\d+)",
        rf"operands could not be broadcast together with shapes {shape('left')} {shape('right')}",
        rf"output with shape {shape('left')} doesn't match the broadcast shape {shape('right')}",
        r"The expanded size of the tensor \((?P<first>\d+)\) must match the existing size \((?P<second>\d+)\) at "
        r"non-singleton dimension (?P<axis>\d+)",
    ),
    "not_a_tensor": (r"argument 'input' \(position 1\) must be Tensor, not (?P<type>[\w.]+)",),
    "no_axes": (r"both arguments to (?:linear|matmul) need to be at least 1D, but they are 0D",),
    "mask_shape": (
        rf"The shape of the mask {shape('mask')} at index (?P<axis>\d+) does not match the shape of the indexed "
        rf"tensor {shape('indexed')}",
    ),
    "divisible": (
        r"embed_dim must be divisible by num_heads",
        r"num_channels \((?P<total>\d+)\) must be divisible by num_groups \((?P<parts>\d+)\)",
        r"Expected number of channels in input to be divisible by num_groups, but got input of shape \[\d+, "
        r"(?P<total>\d+)[^\]]*\] and num_groups=(?P<parts>\d+)",
        r"(?P<name>\w+) must be divisible by groups",
        r"Shape mismatch, can't divide axis of length (?P<total>\d+) in chunks of (?P<parts>\d+)",
    ),
    "einsum": (
        r"einsum\(\): subscript (?P<letter>\w) has size (?P<second>\d+) for operand \d+ which does not broadcast "
        r"with previously seen size (?P<first>\d+)",
    ),
    "empty_list": (
        r"stack expects a non-empty TensorList",
        r"expected a non-empty list of Tensors",
        r"need at least one array to (?:stack|concatenate)",
        r"torch\.cat\(\): expected a non-empty list",
    ),
    "view": (
        rf"shape '{shape('target')}' is invalid for input of size (?P<size>\d+)",
        r"cannot reshape array of size (?P<size>\d+) into shape \((?P<target>[\d, -]+)\)",
        r"(?P<strides>view size is not compatible with input tensor's size and stride)",
        r"shape '\[(?P<target>[-\d, ]+)\]' is invalid for input of size (?P<size>\d+)",
    ),
    "batch_size": (r"Expected input batch_size \((?P<outputs>\d+)\) to match target batch_size \((?P<targets>\d+)\)",),
    "target_size": (
        rf"Target size \({shape('target')}\) must be the same as input size \({shape('output')}\)",
        rf"Using a target size \({shape('target')}\) that is different to the input size \({shape('output')}\)",
        rf"Using a target size \({shape('target')}\) that is different to the input size \({shape('output')}\) is "
        r"deprecated",
    ),
    "batch_norm_single": (
        rf"Expected more than 1 (?:value per channel|spatial element) when training, got input size {shape('input')}",
    ),
    "recurrent_size": (
        r"input\.size\(-1\) must be equal to input_size\. Expected (?P<expected>\d+), got (?P<features>\d+)",
        rf"Expected hidden(?:\[(?P<part>\d)\])? size {shape('expected_shape')}, got {shape('actual_shape')}",
    ),
    "attention_mask": (
        r"Expected key_padd(?:ed|ing)_mask\.shape\[0\] to be (?P<expected>\d+), but got (?P<actual>\d+)",
        rf"expecting key_padding_mask shape of {shape('expected_shape')}, but got {shape('actual_shape')}",
        rf"The shape of the [23]D attn_mask is {shape('actual_shape')}, but should be {shape('expected_shape')}",
        rf"key shape {shape('left')} does not match value shape {shape('right')}",
    ),
    "dimension_range": (
        r"Dimension out of range \(expected to be in range of \[(?P<low>-?\d+), (?P<high>-?\d+)\], but got "
        r"(?P<axis>-?\d+)\)",
        r"axis (?P<axis>-?\d+) is out of bounds for array of dimension (?P<dimensions>\d+)",
    ),
    "normalized_shape": (
        r"Given normalized_shape=\[(?P<expected>[\d, ]+)\], expected input with shape \[\*, [\d, ]+\], but got "
        rf"input of size{shape('input')}",
        r"was expecting embedding dimension of (?P<expected>\d+), but got (?P<features>\d+)",
    ),
    "kernel_too_large": (
        r"Calculated padded input size per channel: \((?P<input>[\d x]+)\)\. Kernel size: \((?P<kernel>[\d x]+)\)\. "
        r"Kernel size can't be greater than actual input size",
        r"Given input size: \((?P<input>[\d x]+)\)\. Calculated output size: \((?P<output>[-\d x]+)\)\. Output size "
        r"is too small",
    ),
    "unpack": (
        r"too many values to unpack \(expected (?P<expected>\d+)(?:, got (?P<actual>\d+))?\)",
        r"not enough values to unpack \(expected (?:at least )?(?P<expected>\d+), got (?P<actual>\d+)\)",
    ),
    # labels and indices
    "target_range": (
        r"Target (?P<label>-?\d+) is out of bounds",
        r"Assertion `?(?:t|cur_target|target_val|\w*target\w*) ?>= ?0 ?&& ?\w+ ?< ?n_classes`? failed",
        r"Class values must be (?P<bound>smaller than num_classes|non-negative)",
    ),
    "several_indices": (
        r"only integer tensors of a single element can be converted to an index",
        r"only integer scalar arrays can be converted to a scalar index",
    ),
    "array_index": (
        r"only integers, slices \(`:`\), ellipsis",
        r"(?:list|tuple) indices must be integers or slices, not (?P<type>\w+)",
        r"string indices must be integers",
        r"(?:too many indices|invalid index).*(?:string|str)",
    ),
    "image_axes": (
        r"Invalid shape \((?P<shape>[\d, ]+)\) for image data",
        r"Cannot handle this data type: "
        r"\((?P<shape>[\d, ]+)\)",
    ),
    "not_iterable": (
        r"'(?P<type>[\w.]+)' object is not (?:iterable|subscriptable)",
        r"argument of type '(?P<type>[\w.]+)' is not iterable",
        r"cannot unpack non-iterable (?P<type>[\w.]+) object",
        r"iteration over a (?P<type>0-d) tensor",
        r"invalid index of a (?P<type>0-dim) tensor",
        r"slice\(\) cannot be applied to a (?P<type>0-dim) tensor",
        r"len\(\) of a (?P<type>0-d) tensor",
        r"object of type '(?P<type>[\w.]+)' has no len\(\)",
    ),
    "special_method": (
        r"Subclasses of Dataset should implement (?P<method>__getitem__)",
        r"'(?P<type>[\w.]+)' object (?:does not support (?P<method>item assignment|the context manager protocol))",
        r"'(?P<type>[\w.]+)' object is (?P<method>not an iterator)",
    ),
    "optimizer_argument": (
        r"params argument given to the optimizer should be an iterable of Tensors or dicts, but got (?P<type>[\w.]+)",
        r"optimizer can only optimize Tensors, but one of the params is (?P<type>[\w.]+)",
    ),
    "loader_option": (
        r"(?P<option>prefetch_factor) option could only be specified in multiprocessing",
        r"(?P<option>persistent_workers) option needs num_workers > 0",
        r"(?P<option>sampler) option is mutually exclusive with shuffle",
        r"(?P<option>batch_sampler) option is mutually exclusive with",
    ),
    "integer_gradient": (r"[Oo]nly Tensors of floating point and complex dtype can require gradients",),
    "array_expected": (r"expected np\.ndarray \(got (?P<type>\w+)\)",),
    "boolean_arithmetic": (r"Subtraction, the `-` operator, with (?:a bool tensor|two bool tensors) is not supported",),
    "text_to_tensor": (
        r"too many dimensions '(?P<type>str)'",
        r"new\(\): invalid data type '(?P<type>str)'",
        r"could not convert string to float: '?(?P<text>[^'\n]*)'?",
        r"can't convert np\.ndarray of type numpy\.(?P<type>object_|str_)",
    ),
    "ragged_array": (
        r"setting an array element with a sequence",
        r"expected sequence of length (?P<first>\d+) at dim \d+ \(got (?P<second>\d+)\)",
    ),
    "split_lengths": (r"Sum of input lengths does not equal the length of the input dataset",),
    "zero_division": (
        r"^ZeroDivisionError",
        r"(?:float|integer|integer modulo|division|float floor)(?: division| or modulo)? by zero",
    ),
    "table_index": (
        r"^index out of range in self",
        r"index out of range: Tried to access index (?P<index>-?\d+) out of table with (?P<rows>\d+) rows",
        r"Assertion `srcIndex < srcSelectDimSize` failed",
        r"INDICES element is out of DATA bounds, id=(?P<index>-?\d+) axis_dim=(?P<rows>\d+)",
        r"Index \d+ of input takes value (?P<index>-?\d+) which is not in the valid range \[0, (?P<rows>\d+)\)",
    ),
    "index": (
        r"index (?P<index>-?\d+) is out of bounds for (?:dimension|axis) (?P<axis>\d+) with size (?P<size>\d+)",
        r"^(?P<container>list|tuple|string|pop) index out of range|^pop from empty (?P<empty>list)",
        r"index (?P<index>-?\d+) is out of bounds for axis (?P<axis>\d+) with size (?P<size>\d+)",
        r"single positional indexer is out-of-bounds",
    ),
    "ctc_lengths": (
        r"Expected (?P<operand>input|target)_lengths to have value at most (?P<size>\d+), but got value "
        r"(?P<length>\d+)",
        r"(?P<operand>input|target)_lengths must be of size batch_size",
        r"Expected tensor to have size at least (?P<length>\d+) at dimension (?P<axis>1), but got size (?P<size>\d+) "
        r"for argument #2 'targets'",
    ),
    "empty_length": (
        r"Length of all samples has to be greater than 0, but found an element in 'lengths' that is <= 0",
    ),
    "target_probability": (
        r"all elements of (?P<operand>input|target) should be between 0 and 1",
        r"Assertion `input_val >= zero && input_val <= one` failed",
    ),
    "target_dimensions": (
        r"0D or 1D target tensor expected, multi-target not supported",
        r"multi-target not supported at",
        r"only batches of spatial targets supported \((?P<expected>\d)D tensors\) but got targets of "
        r"(?:size|dimension): (?:: )?(?P<actual>\d)",
        r"Expected floating point type for target with class probabilities, got (?P<dtype>\w+)",
        rf"Expected target size {shape('expected_shape')}, got {shape('actual_shape')}",
        r"size mismatch \(got input: \[(?P<input>[\d, ]+)\] ?, target: \[(?P<actual_shape>[\d, ]+)\]",
    ),
    "gather_axes": (
        r"Index tensor must have the same number of dimensions as (?:input|self|src|output) tensor",
        r"index should have the same number of dimensions as (?:self|input)",
        r"torch\.take_along_dim\(\): input and indices should have the same number of dimensions",
    ),
    "class_weights": (
        r"weight tensor should be defined either for all (?P<classes>\d+) classes or no classes but got weight "
        rf"tensor of shape: {shape('weight')}",
        r"weight tensor should be defined either for all or no classes",
    ),
    # dtype and device
    "unsupported_dtype": (
        r"\"?(?P<operator>[\w:]+)\"? not implemented for '(?P<dtype>\w+)'",
        r"(?P<operator>\w+)\(\): could not infer output dtype\. Input dtype must be either a floating point or "
        r"complex dtype\. Got: (?P<dtype>\w+)",
        r"(?P<operator>\w+)\(\): input dtype should be either floating point or complex dtypes\. Got (?P<dtype>\w+)",
    ),
    "index_dtype": (
        r"Expected tensor for argument #\d+ '(?P<operand>\w+)' to have one of the following scalar types: Long, "
        r"Int; but got (?P<dtype>[\w.]+) instead",
        r"tensors used as indices must be long, (?:int, )?byte or bool tensors",
        r"(?:scatter|gather|index)\w*\(\): Expected dtype int64 for index",
        r"arrays used as indices must be of integer \(or boolean\) type",
        r"one_hot is only applicable to index tensor",
    ),
    "dtype": (
        r"expected scalar type (?P<expected>\w+) but found (?P<actual>\w+)",
        rf"expected m1 and m2 to have the same dtype, but got: {dtype('actual')} != {dtype('expected')}",
        rf"must have the same dtype, but got {dtype('actual')}(?: and|,) {dtype('expected')}",
        rf"to have (?:the )?same dtypes?,? but found {dtype('actual')} and {dtype('expected')}",
        rf"must (?:be|have) the same(?: dtype)?, got:? input1?:? {dtype('actual')}, "
        rf"(?:\w+: (?:c10::)?(?P=actual), )?\w+: {dtype('expected')}",
        rf"input dtype \({dtype('actual')}\) does not match weight dtype \({dtype('expected')}\)",
        rf"but got query\.dtype: {dtype('actual')},? key\.dtype: "
        rf"(?:(?:c10::)?(?P=actual),? and value\.dtype: )?{dtype('expected')}",
        rf"but got attn_mask\.dtype: {dtype('actual')} and +query\.dtype: {dtype('expected')}",
        rf"self \({dtype('expected')}\) and source \({dtype('actual')}\) must have the same scalar type",
        rf"self and source to have same dtypes but got ?{dtype('expected')} and {dtype('actual')}",
        rf"[Ee]xpected dtype {dtype('expected')} for `\w+` but got dtype {dtype('actual')}",
        rf"but (?:found|got) [\w']+ (?:of type|dtype) {dtype('actual')} and [\w']+ (?:of type|dtype) "
        rf"{dtype('expected')}",
        rf"but type {dtype('actual')} does not equal {dtype('expected')}",
        rf"Type promoting not supported\. Got {dtype('actual')} and {dtype('expected')}",
        r"Input type \((?P<actual>[a-z][\w :]*)\) and (?P<parameter>bias|weight) type \((?P<expected>[a-z][\w "
        r":]*)\) should be the same",
        r"expected target dtype to be (?P<expected>Long) or Byte, but got (?P<actual>\w+)",
        r"Expected object of (?:scalar type|type|data type) (?P<expected>[\w.]+) but (?:got scalar type|found "
        r"type|got data type) (?P<actual>[\w.]+)",
        r"Found dtype (?P<actual>\w+) but expected (?P<expected>\w+)",
        r"Index put requires the source and destination dtypes match, got (?P<expected>\w+) for the destination and "
        r"(?P<actual>\w+) for the source",
        r"self and source expected to have the same dtype, but got \(self\) (?P<expected>\w+) and \(source\) "
        r"(?P<actual>\w+)",
        r"result type (?P<actual>\w+) can't be cast to the desired output type (?P<expected>\w+)",
        r"Input type \((?:torch\.)?(?P<actual>(?!cuda)\w+(?:Tensor|Type))\) and (?P<parameter>bias|weight) type "
        r"\((?:torch\.)?(?P<expected>(?!cuda)\w+(?:Tensor|Type))\) should be the same",
    ),
    "device": (
        r"Input type \(torch\.(?P<actual>(?:cuda\.)?\w+)\) and (?P<parameter>weight|bias) type "
        r"\(torch\.(?P<expected>(?:cuda\.)?\w+)\) should be the same",
        r"Expected all tensors to be on the same device, but (?:found at least two devices, (?P<first>[\w:]+) and "
        r"(?P<second>[\w:]+)!|got (?P<operand>\w+) is on (?P<actual>[\w:]+), different from other tensors "
        r"on (?P<expected>[\w:]+))(?: \(when checking argument (?:for argument (?P<argument>\w+) )?in "
        r"method (?P<method>\w+)\))?",
        r"Expected object of device type (?P<expected>\w+) but got device type (?P<actual>\w+) for argument #\d+ "
        r"'(?P<argument>\w+)' in call to (?P<method>\w+)",
        r"Tensor for argument #\d+ '(?P<argument>\w+)' is on (?P<actual>\w+), but expected (?:it|them) to be on "
        r"(?P<expected>\w+)",
        r"Input, output and indices must be on the current device",
        r"indices should be either on cpu or on the same device as the indexed tensor \((?P<expected>[\w:]+)\)",
        r"Tensor on device (?P<actual>(?!meta)[\w:]+) is not on the expected device (?P<expected>[\w:]+)",
    ),
    "plain_tensor": (r"Tensor on device (?P<actual>[\w:]+) is not on the expected device (?P<expected>[\w:]+)",),
    "meta": (
        r"Tensor on device meta is not on the expected device",
        r"Cannot copy out of meta tensor; no data",
    ),
    "to_numpy": (
        r"Can't call numpy\(\) on Tensor that requires grad",
        r"can't convert (?P<device>[\w:]+) device type tensor to numpy",
        r"can't convert CUDA tensor to numpy",
    ),
    # autograd
    "not_scalar": (
        r"grad can be implicitly created only for scalar outputs",
        r"a Tensor with (?P<elements>\d+) elements cannot be converted to Scalar",
        r"only one element tensors can be converted to Python scalars",
        r"only (?:size|length)-1 arrays can be converted to Python scalars",
    ),
    "real_number": (r"must be real number, not (?P<type>\w+)",),
    "ambiguous_truth": (
        r"Boolean value of Tensor with more than one value is ambiguous",
        r"The truth value of an array with more than one element is ambiguous",
    ),
    "no_gradient": (
        r"element 0 of tensors does not require grad and does not have a grad_fn",
        r"(?:you can only change requires_grad|cannot call .backward|One of the differentiated Tensors does not "
        r"require grad)",
    ),
    "second_backward": (
        r"Trying to backward through the graph a second time",
        r"Trying to access directly saved tensors after they have already been freed",
    ),
    "in_place": (
        r"one of the variables needed for gradient computation has been modified by an inplace operation: "
        r"\[(?P<type>[\w.]+)(?: \[(?P<shape>[\d, ]*)\])?\](?:, which is output \d+ of (?P<made_by>\w+),)?",
        r"a leaf Variable that requires grad (?:is being|has been) used in an in-place operation",
        r"Output \d+ of (?P<made_by>\w+) is a view and (?:is being|its base or another view of its base has been) "
        r"modified inplace",
    ),
    "empty_parameters": (r"optimizer got an empty parameter list",),
    "non_leaf": (r"can't optimize a non-leaf Tensor",),
    # data sets
    "collate_type": (
        r"default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; found (?:<class "
        r"'(?P<type>[\w.]+)'>|(?P<object>\w+))",
        r"batch must contain tensors, numbers, dicts or lists; found <class '(?P<type>[\w.]+)'>",
    ),
    "sample_none": (
        r"expected Tensor as element (?P<position>\d+) in argument 0, but got (?P<type>\w+)",
        r"'(?P<type>NoneType)' object is not (?:subscriptable|iterable)",
        r"Could not infer dtype of (?P<type>\w+)",
        r"object of type '(?P<type>NoneType)' has no len\(\)",
    ),
    "operands": (
        r"unsupported operand type\(s\) for (?P<operator>[^:]+): '(?P<left_type>[\w.]+)' and '(?P<right_type>[\w.]+)'",
        r"can only concatenate (?P<left_type>str|list|tuple) \(not \"(?P<right_type>\w+)\"\) to \w+",
        r"'(?P<operator>[<>=]+)' not supported between instances of '(?P<left_type>\w+)' and '(?P<right_type>\w+)'",
        r"can't multiply (?P<left_type>sequence) by non-int of type '(?P<right_type>\w+)'",
    ),
    "already_converted": (
        r"pic should be (?:PIL Image or ndarray|Tensor or ndarray)\. Got <class '(?P<type>[\w.]+)'>",
        r"Input (?:tensor )?should be a (?:torch )?[Tt]ensor\. Got (?:type )?<class '(?P<type>[\w.]+)'>",
        r"img should be (?:PIL Image|Tensor Image)\. Got <class '(?P<type>[\w.]+)'>",
        r"Unexpected type <class '(?P<type>[\w.]+)'>",
    ),
    "worker_exit": (r"DataLoader worker \(pid\(?s?\)?:? [\d, ]+\) exited unexpectedly",),
    "scheduler_resume": (r"param '(?P<key>initial_lr)' is not specified in param_groups\[\d+\] when resuming",),
    "numpy_type": (r"Got unsupported ScalarType (?P<dtype>\w+)",),
    "used_up": (r"^StopIteration", r"generator raised StopIteration"),
    "value_missing": (r"list\.remove\(x\): x not in list", r"(?P<value>\S+) is not in list"),
    "empty_dataset": (
        r"num_samples should be a positive integer value, but got num_samples=0",
        r"Found 0 (?:files|images) in (?:subfolders of|folder):? ?(?P<folder>\S*)",
        r"Couldn't find any class folder in (?P<folder>\S+?)\.?$",
    ),
    "pickle": (
        r"Can't (?:pickle|get) local object '?(?P<object>[\w.<>]+)'?",
        r"Can't pickle <function (?P<object>[\w.<>]+) at 0x\w+>: (?P<reason>.*)",
        r"cannot pickle '(?P<type>[\w.]+)' object",
        r"(?P<type>h5py) objects cannot be pickled",
        r"can't pickle (?P<type>[\w.]+) objects",
    ),
    "main_guard": (
        r"An attempt has been made to start a new process before the\s+current process has finished its "
        r"bootstrapping phase",
        r"freeze_support\(\)",
    ),
    "missing_file": (
        r"\[Errno 2\] No such file or directory: '?(?P<path>[^'\n]+)'?",
        r"(?P<path>\S+) does not exist",
        r"Unable to (?:synchronously )?open file \(unable to open file: name = '(?P<path>[^']+)', errno = 2",
    ),
    # models and their parameters
    "copied_graph": (r"Only Tensors created explicitly by the user \(graph leaves\) support the deepcopy protocol",),
    "without_gradient": (
        r"Expected to have finished reduction in the prior iteration(?:[\s\S]*?did not receive grad for rank "
        r"\d+:(?P<indices>(?: \d+)+))?",
    ),
    "not_finite_gradient": (
        r"The total norm of order [\w.]+ for gradients from `parameters` is non-finite",
        r"Function '(?P<function>\w+?)Backward\d*' returned nan values",
    ),
    # checkpoints
    "state_dict": (r"Error\(s\) in loading state_dict for (?P<model>[\w.]+):(?P<rest>[\s\S]*)",),
    "optimizer_groups": (
        r"loaded state dict has a different number of parameter groups",
        r"loaded state dict contains a parameter group that doesn't match the size of optimizer's group",
    ),
    "weights_only": (
        r"Unsupported global: GLOBAL (?P<object>[\w.]+) was not an allowed global",
        r"Unsupported class (?P<object>[\w.]+)",
        r"Can't get attribute '(?P<object>\w+)' on <module '(?P<module>\w+)'",
    ),
    "cuda_checkpoint": (
        r"Attempting to deserialize object on a CUDA device but torch\.cuda\.is_available\(\) is False",
        r"Attempting to deserialize object on CUDA device (?P<device>\d+) but torch\.cuda\.device_count\(\) is "
        r"(?P<count>\d+)",
    ),
    # model code
    "no_super_init": (
        r"cannot assign (?P<what>module|parameters?|buffers?)[^\n]{0,60} before (?:Module|super\(\))\.__init__\(\) "
        r"call",
        r"'(?P<owner>\w+)' object has no attribute "
        r"'_(?:modules|parameters|buffers|backward_hooks|forward_hooks|non_persistent_buffers_set)'",
        r"super\(\) call is required|__init__\(\) call missing",
    ),
    "no_forward": (
        r"Module \[(?P<module>\w+)\] is missing the required \"forward\" function",
        r"'(?P<module>ModuleList|ModuleDict|ParameterList)' object is not callable",
    ),
    "weighted_sampler": (r"cannot sample n_sample > prob_dist\.size\(-1\) samples without replacement",),
    "missing_integers": (
        r"Cannot convert non-finite values \(NA or inf\) to integer",
        r"cannot convert (?:float )?NaN to integer|Cannot convert NA to integer",
    ),
    "invalid_box": (r"Found invalid box \[(?P<box>[^\]]+)\] for target at index (?P<position>\d+)",),
    "closed": (
        r"'NoneType' object has no attribute '(?:open|read|seek|fp)'",
        r"I/O operation on closed file|read of closed file|seek of closed file|Operation on closed image",
        r"Invalid (?:location|file|object|dataset) identifier|Not a (?:location|file|dataset|datatype)(?: id)? "
        r"\(invalid object ID\)|Unable to (?:synchronously )?(?:open|get) [\w ]+\(invalid (?:\w+ )?identifier",
        r"ZIP archive that was already closed|closed database|mmap closed or invalid|environment has been closed",
    ),
    "class_identity": (
        r"super\(type, obj\): obj must be an instance or subtype of type",
        r"Can't pickle <class '(?:[\w.]+\.)?(?P<type>\w+)'>: it's not the same object as",
    ),
    "scheduler_end": (r"Tried to step (?P<step>\d+) times\. The specified number of total steps is (?P<total>\d+)",),
    "not_callable": (r"'(?P<type>[\w.]+)' object is not callable",),
    "wrong_argument": (
        r"(?P<function>\w+)\(\): argument '(?P<argument>\w+)' \(position (?P<position>\d+)\) must be "
        r"(?P<expected>[\w ]+), not (?P<actual>[\w.]+)",
        r"(?P<function>\w+)\(\): argument '(?P<argument>\w+)' (?:\(position (?P<position>\d+)\) )?(?:failed to "
        r"unpack the object at pos \d+ with error \"type )?must be (?P<expected>tuple of ints), ?but "
        r"(?:found element of type |got )(?P<actual>[\w.]+)",
        r"(?P<function>\w+)\(\)(?: received)? an invalid combination of arguments - got \((?P<actual>[^\n]*?)\), "
        r"but expected",
    ),
    "no_attribute": (
        r"'(?P<type>[\w.]+)' object has no attribute '(?P<attribute>\w+)'",
        r"type object '(?P<type>[\w.]+)' has no attribute '(?P<attribute>\w+)'",
    ),
    "removed_api": (
        r"module '(?P<module>[\w.]+)' has no attribute '(?P<attribute>\w+)'",
        r"cannot import name '(?P<attribute>\w+)' from (?:partially initialized module )?'(?P<module>[\w.]+)'",
        r"No module named '(?P<module>[\w.]+)'",
        r"partially initialized module '(?P<module>[\w.]+)' has no attribute '(?P<attribute>\w+)'",
    ),
    "unexpected_keyword": (
        r"(?P<function>[\w.]+)\(\) got an unexpected keyword argument '(?P<argument>\w+)'",
        r"(?P<function>[\w.]+)\(\) got multiple values for argument '(?P<argument>\w+)'",
        r"(?P<function>[\w.]+)\(\) missing (?P<count>\d+) required (?:positional|keyword-only) arguments?: "
        r"(?P<missing>.+)",
        r"(?P<function>[\w.]+)\(\) takes (?:from \d+ to )?(?P<expected>\d+) positional arguments? but "
        r"(?P<actual>\d+) (?:was|were) given",
    ),
    "allocation": (
        r"you tried to allocate (?P<bytes>\d+) bytes",
        rf"Unable to allocate (?P<size>[\d.]+) (?P<unit>[KMGTPE]?i?B) for an array with shape {shape('shape')} and "
        r"data type (?P<dtype>\w+)",
    ),
    "key": (r"^KeyError",),
    "assertion": (r"^AssertionError",),
    "empty_values": (
        r"(?:max|min)\(\) (?:arg is an empty sequence|iterable argument is empty)",
        r"zero-size array to reduction operation",
    ),
    "recursion": (r"^RecursionError",),
    "exit": (r"^SystemExit",),
    "name": (
        r"name '(?P<name>\w+)' is not defined",
        r"cannot access local variable '(?P<name>\w+)'",
        r"local variable '(?P<name>\w+)' referenced before assignment",
    ),
}
COMPILED = {kind: tuple(re.compile(pattern) for pattern in patterns) for kind, patterns in PATTERNS.items()}
TRACED = re.compile(r'File "(?P<file>[^"\n]+)", line (?P<line>\d+), in \w+\n\s+(?P<code>[^\n]+)')  # by torch.compile
SHAPE_TEXT = re.compile(r"-?\d+(?:(?:, ?| x |x)-?\d+)+,?|\d+,")


def facts(type_name: str, message: str) -> Iterator[Fact]:
    """Yield what a message says, the kinds in their order."""
    for kind, patterns in COMPILED.items():
        for pattern in patterns:
            match = pattern.search(message) or pattern.search(f"{type_name}: {message}")
            if match:
                yield Fact(
                    kind, {name: _typed(name, text) for name, text in match.groupdict().items() if text is not None}
                )
                break


def _typed(name: str, text: str) -> Any:
    if re.fullmatch(r"-?\d+", text):
        number = int(text)
        return (number,) if name in SHAPE_NAMES else number
    if SHAPE_TEXT.fullmatch(text) or (name in SHAPE_NAMES and not text):
        return tuple(int(part) for part in re.findall(r"-?\d+", text))
    return text


SHAPE_NAMES = (
    "left",
    "right",
    "weight",
    "input",
    "target",
    "output",
    "expected_shape",
    "actual_shape",
    "kernel",
    "shape",
    "mask",
    "indexed",
    "first_shape",
    "second_shape",
)
MISSING_KEYS = re.compile(r"Missing key\(s\) in state_dict: (?P<keys>[^\n]*)")
UNEXPECTED_KEYS = re.compile(r"Unexpected key\(s\) in state_dict: (?P<keys>[^\n]*)")
SIZE_MISMATCH = re.compile(
    r"size mismatch for (?P<key>[\w.]+): copying a param with shape torch\.Size\(\[(?P<saved>[\d, ]*)\]\) from "
    r"checkpoint,"
    r"\s+the shape in current model is torch\.Size\(\[(?P<model>[\d, ]*)\]\)"
)


def state_dict_keys(message: str) -> tuple[list[str], list[str], list[tuple[str, str, str]]]:
    """Return missing keys, unexpected keys, and (key, saved shape, model shape) of those of another size."""
    lists = [
        re.findall(r'"([^"]+)"', match["keys"]) if (match := pattern.search(message)) else []
        for pattern in (MISSING_KEYS, UNEXPECTED_KEYS)
    ]
    return lists[0], lists[1], [(m["key"], m["saved"], m["model"]) for m in SIZE_MISMATCH.finditer(message)]
