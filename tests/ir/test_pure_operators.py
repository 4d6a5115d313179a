"""Files may name functions of tensors, and no operator of torch with any other effect."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from irgraph.ir.torch_schemas.custom_ops import custom_ops
from irgraph.ir.torch_schemas.pure_operators import (
    LIBRARIES,
    OperatorError,
    pure_operator,
    pure_packet,
    refusal,
)

torch = pytest.importorskip("torch")

EFFECTS = re.compile(
    r"file|save|load(?!ed)|print|seed|process|pickle|exec|import|socket|stream|cuda|profil|"
    r"record_|thread|^set_|pointer|_dual|pin_memory|handle|barrier|all_?reduce|broadcast_\b|"
    r"set_data|reinterpret|alias_from|unsafe_tensor|_tensor_unsafe|from_blob|prepack|package|"
    r"requires_grad|retain_grad|batch_dim|cuFFT|cufft|_test_|wait_tensor"
)
"""Words in the names of operators that act on anything else than their tensors."""

PURE_ALL_THE_SAME = {
    "irgraph.load_batch",
    "quantized.embedding_bag_2bit_prepack",
    "quantized.embedding_bag_2bit_prepack_with_rowwise_min_max",
    "quantized.embedding_bag_4bit_prepack",
    "quantized.embedding_bag_4bit_prepack_with_rowwise_min_max",
    "quantized.embedding_bag_byte_prepack",
    "quantized.embedding_bag_byte_prepack_with_rowwise_min_max",
}
"""Operators without effects in spite of their names: a batch's loading takes a number and does
nothing, the others quantise rows, from a tensor to a tensor."""


def operators() -> Iterator[tuple[str, str]]:
    """Yield every operator of torch: of its dispatcher, and the functions of TorchScript."""
    for schema in torch._C._jit_get_all_schemas():
        yield schema.name.replace("::", ".", 1), schema.overload_name
    for full_name in torch._C._dispatch_get_all_op_names():
        name, _, overload = full_name.partition(".")
        yield name.replace("::", ".", 1), overload


def allowed() -> set[tuple[str, str]]:
    return {(name, overload) for name, overload in operators() if refusal(name, overload) == ""}


def test_every_operator_is_of_a_library_of_functions_on_tensors() -> None:
    others = {name for name, _ in allowed() if name.partition(".")[0] not in LIBRARIES}
    assert others <= custom_ops().keys()


def test_no_operator_with_another_effect_is_allowed() -> None:
    names = {name for name, _ in allowed() if EFFECTS.search(name.partition(".")[2])}
    assert names <= PURE_ALL_THE_SAME


def test_every_allowed_operator_takes_and_returns_values() -> None:
    """Its schema has no object, address, stream, storage or generator that a file could name."""
    objects = re.compile(r"__torch__|Storage|Stream|Any|Dict|QScheme|\bt\b|Future|RRef|Await")
    for name, overload in allowed():
        schema = torch._C._get_schema(name.replace(".", "::", 1), overload)
        types = " ".join(str(a.real_type) for a in (*schema.arguments, *schema.returns))
        assert not objects.search(types), f"{name}.{overload}: {types}"


@pytest.mark.parametrize(
    "name",
    [
        "aten.from_file", "aten.save", "aten.manual_seed", "aten.set_", "aten.set_data",
        "aten._print", "aten._make_dual", "aten.requires_grad_", "aten.pin_memory",
        "aten._reshape_alias", "aten._backward", "aten._test_warn_in_autograd", "aten.Size",
        "aten.list", "aten.format", "aten.wait", "aten.splitlines", "aten.__import__",
        "prim.Print", "prim.rpc_async", "prim.PythonOp", "cuda.set_stream",
        "cuda._set_device", "c10d.allreduce_", "c10d.send", "_c10d_functional.all_reduce",
        "profiler._record_function_enter", "inductor._reinterpret_tensor",
        "inductor.resize_storage_bytes_", "rngprims.philox_rand", "debugprims.load_tensor",
        "prims.rng_bits", "mkldnn_prepacked.conv2d_run", "quantized.linear",
        "quantized.linear_unpack", "quantized.make_quantized_cell_params", "sparse.qlinear",
        "static_runtime.signed_log1p", "onednn.qlinear_pointwise", "symm_mem.one_shot_all_reduce",
        "image.read_file", "torchaudio.sox_io_load_audio_file", "fbgemm.new_managed_tensor",
        "fbgemm.uvm_to_cpu", "fbgemm.copy_to_shared", "os.system", "library.Library",
        "aten", "", "aten.add.Tensor", "aten.__class__", "higher_order.print", "_test.leaky_relu",
    ],
)  # fmt: skip
def test_operators_that_are_more_than_functions_are_refused(name: str) -> None:
    for overload in ("", "default", "Tensor", "str", "source_Tensor", "int"):
        with pytest.raises(OperatorError):
            pure_operator(name, overload)
    with pytest.raises(OperatorError):
        pure_packet(name)


def test_operators_of_training_steps_are_allowed() -> None:
    for name, overload in (
        ("aten.addmm", ""), ("aten.add_", "Tensor"), ("aten._foreach_add_", "List"),
        ("aten._embedding_bag", ""), ("aten._local_scalar_dense", ""),
        ("aten.empty", "memory_format"),
        ("aten.gelu_backward", ""), ("prims.convert_element_type", ""), ("aten.dropout", ""),
        ("aten._scaled_dot_product_flash_attention_for_cpu", ""), ("aten.to", "dtype"),
    ):  # fmt: skip
        assert pure_operator(name, overload)
    assert pure_packet("aten.sum")


def test_the_meta_device_has_no_memory_to_address() -> None:
    for name in ("aten._reshape_alias", "_c10d_functional.all_reduce"):
        assert pure_operator(name, meta=True)
    for name in ("aten.from_file", "c10d.send", "inductor._reinterpret_tensor"):
        with pytest.raises(OperatorError):
            pure_operator(name, meta=True)
