"""The messages of the Chakra schema, built at run time from the table below.

Source: ``schema/protobuf/et_def.proto`` of github.com/mlcommons/chakra (package
``ChakraProtoMsg``), field by field. Fields of storage nodes are not read: protobuf treats them as
unknown fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, TypeAlias

from irgraph.diagnostics import fail

Message: TypeAlias = Any
"""A message of protobuf; its classes exist only at run time."""

PACKAGE = "ChakraProtoMsg"

MODEL = "irgraph_model"
"""Attribute of a file's metadata with the text of the model that the file was written from."""

SCALARS = (
    "double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32",
    "fixed64", "sfixed32", "sfixed64", "bool", "string", "bytes",
)  # fmt: skip
"""Types of an attribute's value, in the order of its fields from 3; a list follows each."""

MESSAGES = {
    "GlobalMetadata": "1 string version, 2 AttributeProto* attr",
    "IOInfo": "1 string values, 2 string shapes, 3 string types",
    "Node": (
        "1 uint64 id, 2 string name, 3 NodeType type, 4 uint64* ctrl_deps, 5 uint64* data_deps, "
        "6 uint64 start_time_micros, 7 uint64 duration_micros, 8 IOInfo inputs, 9 IOInfo outputs, "
        "10 AttributeProto* attr"
    ),
}
"""Number, type and name of every field; a star marks repeated fields."""

NODE_TYPES = (
    "INVALID_NODE", "METADATA_NODE", "MEM_LOAD_NODE", "MEM_STORE_NODE", "COMP_NODE",
    "COMM_SEND_NODE", "COMM_RECV_NODE", "COMM_COLL_NODE", "STORAGE_NODE", "BATCH_NODE",
    "CHECKPOINT_NODE",
)  # fmt: skip
"""Node types by their number."""

METADATA_NODE, COMP_NODE, COMM_COLL_NODE = (
    NODE_TYPES.index(name) for name in ("METADATA_NODE", "COMP_NODE", "COMM_COLL_NODE")
)

COLLECTIVES = (
    "ALL_REDUCE", "REDUCE", "ALL_GATHER", "GATHER", "SCATTER", "BROADCAST", "ALL_TO_ALL",
    "REDUCE_SCATTER", "REDUCE_SCATTER_BLOCK", "BARRIER",
)  # fmt: skip
"""Values of the attribute ``comm_type`` of collectives, by their number."""


@cache
def messages() -> dict[str, Message]:
    """Return the message classes by name.

    Raises ``IrgraphError`` (exit code 2) if protobuf is not installed.
    """
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError:
        hint = "pip install 'irgraph[chakra]'"
        raise fail("Chakra traces need protobuf", hint=hint, exit_code=2) from None
    file = descriptor_pb2.FileDescriptorProto(
        name="irgraph/et_def.proto", package=PACKAGE, syntax="proto3"
    )
    kinds = {
        name: getattr(descriptor_pb2.FieldDescriptorProto, f"TYPE_{name.upper()}")
        for name in (*SCALARS, "enum", "message")
    }
    _add_enum(file, "NodeType", NODE_TYPES)
    for name, fields in _message_fields().items():
        message = file.message_type.add(name=name)
        for text in fields.split(", "):
            _add_field(message, text, kinds)
    _join_values(file)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    descriptors = (pool.FindMessageTypeByName(f"{PACKAGE}.{m.name}") for m in file.message_type)
    return {
        descriptor.name: message_factory.GetMessageClass(descriptor) for descriptor in descriptors
    }


def _message_fields() -> dict[str, str]:
    """Return the fields of every message, including attributes and their lists."""
    lists = {f"{name.capitalize()}List": f"1 {name}* values" for name in SCALARS}
    attribute = ", ".join(["1 string name", "2 string doc_string", *_values()])
    return {**lists, "AttributeProto": attribute, **MESSAGES}


def _values() -> Iterator[str]:
    for number, name in enumerate(SCALARS):
        yield f"{3 + 2 * number} {name} {name}_val"
        yield f"{4 + 2 * number} {name.capitalize()}List {name}_list"


def _add_enum(file: Message, name: str, values: tuple[str, ...]) -> None:
    enum = file.enum_type.add(name=name)
    for number, value in enumerate(values):
        enum.value.add(name=value, number=number)


def _add_field(message: Message, text: str, kinds: dict[str, int]) -> None:
    """Add a field to a message's description; ``text`` is its entry in the table."""
    number, kind, name = text.split(" ")
    plain = kind.removesuffix("*")
    field = message.field.add(name=name, number=int(number), label=3 if kind != plain else 1)
    if plain in kinds:
        field.type = kinds[plain]
    else:
        field.type = kinds["enum" if plain == "NodeType" else "message"]
        field.type_name = f".{PACKAGE}.{plain}"


def _join_values(file: Message) -> None:
    """Declare the values of an attribute as a union: it has one of them."""
    (attribute,) = (m for m in file.message_type if m.name == "AttributeProto")
    attribute.oneof_decl.add(name="value")
    for field in attribute.field:
        if field.number >= 3:
            field.oneof_index = 0


def attribute(name: str, kind: str, value: object) -> Message:
    """Return an attribute with a value of one of ``SCALARS``, or a list of them (``int64*``)."""
    message = messages()["AttributeProto"](name=name)
    if kind.endswith("*"):
        getattr(message, f"{kind[:-1]}_list").values.extend(value)
    else:
        setattr(message, f"{kind}_val", value)
    return message


def attributes(message: Message) -> dict[str, Any]:
    """Return the attributes of a node or of a file by name, with lists as Python lists."""
    values: dict[str, Any] = {}
    for entry in message.attr:
        field = entry.WhichOneof("value") or ""
        value: Any = getattr(entry, field) if field else None
        values[entry.name] = list(value.values) if field.endswith("_list") else value
    return values
