"""The operators of torch that a file may name: functions of tensors, and of nothing else.

An operator is allowed or refused by its registration, its library, its name, and its schema in
torch: types of arguments and results, alias annotations and tags. Every function that looks up an
operator by a name from a file uses ``pure_operator``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

from irgraph.ir.torch_schemas.custom_ops import custom_ops

Torch: TypeAlias = Any
"""An object of torch's: an operator, a schema."""

MAX_NAMES = 1 << 12
"""Maximum number of names whose refusal is cached."""

META_LIBRARIES = frozenset(("_c10d_functional", "c10d_functional"))
"""Collectives that on torch's meta device only return tensors of the right types."""

TORCH_LIBRARIES = frozenset(("aten", "prims", "quantized"))
"""Libraries of torch with operators on tensors; ``prims`` are written in Python."""

LIBRARIES = TORCH_LIBRARIES | {"quantized_decomposed", "torchvision", "fbgemm"}
"""Libraries whose operators are allowed if their schemas describe functions of tensors."""

PROCESSES = "it exchanges data with other processes"
ADDRESSES = "it addresses memory without checking bounds"
FILES = "it opens files"
TERMINAL = "it prints"
STATE = "it reads or changes torch's global state"
NO_TENSORS = "it neither takes nor returns a tensor"
NO_EFFECT = "it neither returns nor writes a tensor"
AUTOGRAD = "it reads or changes what autograd records"
DEVICES = "it manages memory of a device"
OBJECTS = "it keeps an object behind a tensor"
MEMORY = "it replaces the memory of a tensor"
TESTS = "it is one of torch's own tests"

FOREIGN = frozenset((FILES, TERMINAL, TESTS))
"""Reasons that hold of no operator of a training step; the others refuse only to run it."""

REFUSED_LIBRARIES: Mapping[str, str] = {
    **dict.fromkeys(
        ("c10d", "c10d_functional", "_c10d_functional", "_c10d_functional_autograd", "_dtensor"),
        PROCESSES,
    ),
    **dict.fromkeys(("symm_mem", "inductor", "inductor_prims"), ADDRESSES),
    **dict.fromkeys(("profiler", "rngprims", "debug_mode_ops"), STATE),
    **dict.fromkeys(
        ("_quantized", "mkldnn_prepacked", "quantization", "sparse", "_native"), OBJECTS
    ),
    "debugprims": FILES,
    "_test": TESTS,
}
"""Reasons of libraries; any other library outside ``LIBRARIES`` is unknown."""

_REFUSED: Mapping[str, tuple[str, ...]] = {
    FILES: ("aten.from_file",),
    TERMINAL: ("aten._print",),
    DEVICES: ("aten.pin_memory", "aten._pin_memory", "aten.is_pinned"),
    ADDRESSES: (
        "aten._reshape_alias", "aten._reshape_alias_copy", "aten._nested_view_from_buffer",
        "aten._nested_view_from_buffer_copy", "aten._convert_indices_from_coo_to_csr",
        "aten._convert_indices_from_csr_to_coo", "aten._sparse_bsc_tensor_unsafe",
        "aten._sparse_bsr_tensor_unsafe", "aten._sparse_compressed_tensor_unsafe",
        "aten._sparse_compressed_tensor_with_dims", "aten._sparse_coo_tensor_unsafe",
        "aten._sparse_coo_tensor_with_dims_and_tensors", "aten._sparse_csc_tensor_unsafe",
        "aten._sparse_csr_tensor_unsafe", "aten._segment_reduce_backward", "aten.segment_reduce",
    ),
    OBJECTS: (
        "aten._wrapped_linear_prepack", "aten._wrapped_quantized_linear_prepacked",
        "aten.fbgemm_linear_fp16_weight", "aten.fbgemm_linear_fp16_weight_fp32_activation",
        "aten.fbgemm_linear_int8_weight", "aten.fbgemm_linear_int8_weight_fp32_activation",
        "aten.fbgemm_pack_gemm_matrix_fp16", "aten.fbgemm_pack_quantized_matrix",
        "aten.quantized_gru_cell", "aten.quantized_lstm_cell", "aten.quantized_rnn_relu_cell",
        "aten.quantized_rnn_tanh_cell", "quantized.linear_prepack_legacy",
        "quantized.linear_prepack_fp16_legacy", "quantized.linear_unpack",
        "quantized.linear_unpack_fp16",
    ),
    MEMORY: ("aten.set", "aten.set_"),
    AUTOGRAD: (
        "aten._add_batch_dim", "aten._backward", "aten._fw_primal", "aten._fw_primal_copy",
        "aten._make_dual", "aten._make_dual_copy", "aten._remove_batch_dim", "aten._unpack_dual",
        "aten.requires_grad_", "aten.retain_grad", "aten.set_data",
    ),
}  # fmt: skip

REFUSED_OPERATORS: Mapping[str, str] = {
    name: reason for reason, names in _REFUSED.items() for name in names
}
"""Reasons of operators that their schemas do not show; ``irgraph.execute`` replaces some."""

REFUSED_PREFIXES: Mapping[str, str] = {
    "prims.inductor_": STATE, "prims._inductor_": TESTS,
    "aten._test_": TESTS, "aten._foobar": TESTS, "aten._cufft_": STATE,
    "fbgemm.new_managed": DEVICES, "fbgemm.new_host_mapped": DEVICES, "fbgemm.new_unified": DEVICES,
    "fbgemm.new_vanilla_managed": DEVICES, "fbgemm.uvm_": DEVICES, "fbgemm.is_uvm": DEVICES,
    "fbgemm.cuda_mem": DEVICES, "fbgemm.copy_to_shared": ADDRESSES,
    "fbgemm.initialize_nan_shared_mem": ADDRESSES,
}  # fmt: skip
"""Reasons of all operators whose names have a prefix."""

ASSERTIONS = (
    "aten._assert_", "aten._functional_assert_", "aten._linalg_check_errors", "aten._validate_",
    "aten.sym_constrain_range", "prims._sink_tokens",
)  # fmt: skip
"""Prefixes of operators that compute nothing, but raise an error if their operands are wrong."""

ARGUMENT_TYPES = frozenset((
    "Tensor", "int", "SymInt", "float", "bool", "number", "complex", "ScalarType", "Layout",
    "MemoryFormat", "Device", "Generator", "Dimname", "str",
))  # fmt: skip
"""Types of arguments, without lists and options. A file has no value of type ``Generator``."""

RESULT_TYPES = frozenset((
    "Tensor", "int", "SymInt", "float", "bool", "SymBool", "number", "ScalarType",
))  # fmt: skip
"""Types of results, without lists and options."""

WORD_ARGUMENTS = frozenset((
    "UPLO", "activation", "algorithm", "api_name", "approximate", "assert_msg", "driver",
    "equation", "indexing", "interpolation", "mode", "norm", "ord", "p", "pad_mode", "padding",
    "padding_side", "reduce", "rounding_mode", "side",
))  # fmt: skip
"""Text arguments that select a variant of the computation, or are part of an error message."""


class OperatorError(LookupError):
    """Raised if a file may not name an operator; the message is the reason.

    ``missing`` if torch does not have it.
    """

    def __init__(self, reason: str, *, missing: bool = False) -> None:
        super().__init__(reason)
        self.missing = missing


def pure_operator(name: str, overload: str = "", *, meta: bool = False) -> Torch:
    """Return torch's operator of a dotted name and overload.

    With ``meta``, it is only called on tensors of the meta device, which have no memory.

    Raises ``OperatorError`` if torch has none, or it is no function of tensors alone.
    """
    reason = refusal(name, overload)
    if meta and reason in (ADDRESSES, DEVICES, PROCESSES):
        is_on_meta = name.partition(".")[0] in TORCH_LIBRARIES | META_LIBRARIES
        reason = "" if is_on_meta and _schema(name, overload) else reason
    if reason is None:
        raise OperatorError(_missing(name), missing=True)
    if reason:
        raise OperatorError(reason)
    return getattr(_packet(name), overload or "default")


def pure_packet(name: str) -> Torch:
    """Return all overloads of an operator as one callable; see ``pure_operator``.

    Among them are TorchScript's functions of lists of the same name, which are not registered.
    """
    if not _is_registered(name):
        raise OperatorError(_missing(name), missing=True)
    packet = _packet(name)
    for overload in packet.overloads():
        reason = refusal(name, "" if overload == "default" else overload)
        if reason:
            raise OperatorError(reason)
    return packet


_CACHE: dict[tuple[str, str], str] = {}
"""Cached refusals of registered operators; packages may register others at any time."""


def refusal(name: str, overload: str = "") -> str | None:
    """Return why a file may not name an operator, ``""`` if it may, ``None`` without one.

    Args:
        name: library and operator, such as ``aten.add``.
        overload: such as ``Tensor``; ``""`` is the default.
    """
    if (name, overload) in _CACHE:
        return _CACHE[name, overload]
    reason: str | None = refusal_by_name(name)
    if not reason:
        schema = _schema(name, overload)
        reason = None if schema is None else _refusal_by_schema(name, overload, schema)
    if reason is not None:
        _CACHE[name, overload] = reason
    return reason


def _refusal_by_schema(name: str, overload: str, schema: Torch) -> str:
    library = name.partition(".")[0]
    if name in custom_ops():
        return ""
    if library not in LIBRARIES:
        return f"the library {library} is not one of operators on tensors"
    return next(_schema_refusals(name, overload, schema), "")


@lru_cache(maxsize=MAX_NAMES)
def refusal_by_name(name: str) -> str:
    """Return why a file may not name an operator, by its name alone, ``""`` if that allows it."""
    if reason := REFUSED_LIBRARIES.get(name.partition(".")[0]):
        return reason
    prefixes = (reason for prefix, reason in REFUSED_PREFIXES.items() if name.startswith(prefix))
    return REFUSED_OPERATORS.get(name) or next(prefixes, "")


def _schema_refusals(name: str, overload: str, schema: Torch) -> Iterator[str]:
    """Yield the reasons that a schema gives against an operator."""
    for argument in schema.arguments:
        base = _base_type(argument)
        if base not in ARGUMENT_TYPES:
            yield f"its argument {argument.name} is an object of type {base}"
        elif base == "str" and argument.name not in WORD_ARGUMENTS:
            yield f"its argument {argument.name} is a text"
    for result in schema.returns:
        if _base_type(result) not in RESULT_TYPES:
            yield f"it returns an object of type {_base_type(result)}"
    if name.startswith(ASSERTIONS):
        return
    values = (*schema.arguments, *schema.returns)
    if not any(_base_type(value) == "Tensor" for value in values):
        yield NO_TENSORS
    if not schema.returns and not any(map(_is_written, schema.arguments)):
        yield NO_EFFECT
    if not _states_effects(name, overload):
        yield "torch does not guarantee that its schema states its effects"


def _is_written(argument: Torch) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _states_effects(name: str, overload: str) -> bool:
    """Return whether torch tags an operator as one whose schema is complete.

    For some it states only that a result may or may not be an operand.
    """
    import torch

    library = name.partition(".")[0]
    if library not in TORCH_LIBRARIES or name == "prims.convert_element_type":
        return True
    tags = getattr(_packet(name), overload or "default").tags
    may_alias = getattr(torch.Tag, "maybe_aliasing_or_mutating", None)
    return torch.Tag.pt2_compliant_tag in tags or may_alias in tags


def _base_type(value: Torch) -> str:
    """Return the type of an argument or result without lists and options."""
    name = str(value.real_type)
    while name.startswith(("Optional[", "List[")):
        name = name.partition("[")[2].removesuffix("]")
    return name


def _missing(name: str) -> str:
    import torch

    return f"torch {torch.__version__} has no such operator"


def _schema(name: str, overload: str) -> Torch | None:
    """Return the schema of an operator of torch's dispatcher, ``None`` if it has none.

    Built-in functions of TorchScript, such as ``aten.save``, are not of the dispatcher, and
    attributes of Python objects are not either.
    """
    import torch

    full_name = name.replace(".", "::", 1)
    try:
        torch._C._dispatch_find_schema_or_throw(full_name, overload)
        return torch._C._get_schema(full_name, overload)
    except RuntimeError:
        return None


def _is_registered(name: str) -> bool:
    """Return whether the dispatcher has an operator of a name, with any overload."""
    return name.replace(".", "::", 1) in _registered_names()


def _registered_names() -> frozenset[str]:
    import torch

    names = torch._C._dispatch_get_all_op_names()
    return frozenset(full_name.partition(".")[0] for full_name in names)


def _packet(name: str) -> Torch:
    """Return the object of a registered operator that has its overloads as attributes."""
    import torch

    library, _, base = name.partition(".")
    return getattr(getattr(torch.ops, library), base)
