"""Reads the archive of ``torch.export.save`` without its pickles and weights.

An archive has the program as JSON; its sample inputs, and some constants, are pickles, which run
code when they are read. None of them is opened here: shapes and types are in the JSON.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from typing import IO, Any

from irgraph.capture.export.validation import UntrustedError, validate
from irgraph.diagnostics.json_keys import unique_keys
from irgraph.files import read_member

MODEL = "models/model.json"
WEIGHTS, CONSTANTS = (f"data/{kind}/model_{kind}_config.json" for kind in ("weights", "constants"))


def read_program(file: IO[bytes]) -> Any:  # noqa: ANN401
    """Return the exported program of an archive, its tensors on torch's meta device.

    Raises:
        UntrustedError: only torch's own reader can read the archive, by its pickles, or the
            program calls an operator that is not known to be harmless.
        ValueError, KeyError, zipfile.BadZipFile: the archive is damaged.
    """
    with zipfile.ZipFile(file) as archive:
        root = archive.namelist()[0].partition("/")[0]
        if f"{root}/{MODEL}" not in archive.namelist():
            raise UntrustedError("it was written by torch before 2.8, or holds several programs")

        def member(name: str) -> Any:  # noqa: ANN401
            data = read_member(archive, f"{root}/{name}")
            return json.loads(data, object_pairs_hook=unique_keys)

        program = validate(member(MODEL))
        files = {
            name: payload.get("path_name", name)
            for config in (WEIGHTS, CONSTANTS)
            for name, payload in member(config)["config"].items()
        }
    return _deserialize(program, files)


def _deserialize(program: dict[str, Any], files: Mapping[str, str]) -> Any:  # noqa: ANN401
    try:
        from torch._export.serde import schema
        from torch._export.serde.serialize import ExportedProgramDeserializer, _dict_to_dataclass
    except ImportError:
        raise UntrustedError("this torch has another reader of programs") from None
    graph, signature = program["graph_module"]["graph"], program["graph_module"]["signature"]
    state, constants = _tensors(graph, signature["input_specs"], files)
    inputs = _inputs(graph, signature["input_specs"], program)
    exported = _dict_to_dataclass(schema.ExportedProgram, program)
    return ExportedProgramDeserializer().deserialize(exported, state, constants, inputs)


def _tensors(
    graph: dict[str, Any], specs: list[dict[str, Any]], files: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the parameters and stored buffers, and the constants; one file gives one tensor."""
    import torch

    tensor_by_key: dict[tuple[str, ...], Any] = {}
    state: dict[str, Any] = {}
    constants: dict[str, Any] = {}
    for spec in specs:
        (kind, entry), *_ = spec.items()
        if kind in ("user_input", "constant_input", "token"):
            continue
        name = (
            entry.get("parameter_name") or entry.get("buffer_name") or entry["tensor_constant_name"]
        )
        meta = graph["tensor_values"][entry["arg"]["name"]]
        key = (files.get(name, name), json.dumps(meta, sort_keys=True), kind)
        if key not in tensor_by_key:
            tensor = _tensor(meta)
            parameter = torch.nn.Parameter(tensor, requires_grad=meta["requires_grad"])
            tensor_by_key[key] = parameter if kind == "parameter" else tensor
        is_stored = kind == "parameter" or (kind == "buffer" and entry.get("persistent", True))
        (state if is_stored else constants)[name] = tensor_by_key[key]
    return state, constants


def _inputs(
    graph: dict[str, Any], specs: list[dict[str, Any]], program: dict[str, Any]
) -> tuple[Any, Any]:
    """Return example inputs as torch.export stores them: positional and keyword arguments."""
    from torch.utils import _pytree as tree

    leaves = []
    for spec in specs:
        if "user_input" not in spec and "constant_input" not in spec:
            continue
        if "constant_input" in spec:
            leaves.append(_constant(spec["constant_input"]["value"]))
            continue
        ((kind, value),) = spec["user_input"]["arg"].items()
        is_tensor = kind == "as_tensor"
        metas = graph["tensor_values"]
        leaves.append(_tensor(metas[value["name"]]) if is_tensor else _constant({kind: value}))
    signature = program["graph_module"]["module_call_graph"][0]["signature"]
    inputs: tuple[Any, Any] = tree.tree_unflatten(leaves, tree.treespec_loads(signature["in_spec"]))
    return inputs


def _constant(argument: dict[str, Any]) -> Any:  # noqa: ANN401
    ((kind, value),) = argument.items()
    if kind in ("as_int", "as_float", "as_bool", "as_string"):
        return value
    if kind == "as_none":
        return None
    raise UntrustedError(f"an input is neither a tensor nor a plain value: {kind}")


def _tensor(meta: dict[str, Any]) -> Any:  # noqa: ANN401
    """Return a tensor without content, with the dynamic sizes of the program's example inputs."""
    import torch
    from torch._export.serde.serialize import _SERIALIZE_TO_TORCH_DTYPE as DTYPES

    sizes, strides = ([_size(item) for item in meta[key]] for key in ("sizes", "strides"))
    return torch.empty_strided(sizes, strides, dtype=DTYPES[meta["dtype"]], device="meta")


def _size(item: dict[str, Any]) -> int:
    if "as_int" in item:
        return int(item["as_int"])
    return int(item["as_expr"]["hint"]["as_int"])
