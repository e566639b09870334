"""Protobuf's encoding to the JSON of Protobuf (ProtoJSON), with the names of the fields as in the schema.

Confluent's serializer writes which message of the file it is before the data: the number of indexes and the indexes,
zigzag varints; a lone zero stands for the first message.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc_tools
import orjson
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

from logfs.format.base.varint import decode as decode_varint

if TYPE_CHECKING:
    from collections.abc import Callable

    from logfs.schema.schemas import Schema

_MAIN = "logfs-main-schema.proto"
_COMPILE_SECONDS = 60


def compile_schema(schema: Schema) -> Callable[[bytes], bytes]:
    """Return the function that decodes data of a schema. Raises `ValueError` if `protoc` refuses the schema.

    The function raises what `protobuf` raises for data that do not fit, and `LookupError` for a message that is not
    in the schema.
    """
    pool = descriptor_pool.DescriptorPool()
    for file in _compile_files(schema).file:
        pool.AddSerializedFile(file.SerializeToString())
    main = descriptor_pb2.FileDescriptorProto()
    pool.FindFileByName(_MAIN).CopyToProto(main)
    classes: dict[tuple[int, ...], Any] = {}

    def decode(data: bytes) -> bytes:
        indexes, start = _message_indexes(data)
        if indexes not in classes:
            name = _message_name(main, indexes)
            classes[indexes] = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
        message = classes[indexes].FromString(data[start:])
        value = json_format.MessageToDict(
            message,
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
            descriptor_pool=pool,
        )
        return orjson.dumps(value)

    return decode


def _compile_files(schema: Schema) -> descriptor_pb2.FileDescriptorSet:
    """Return the descriptors of a schema and of what it imports, in the order of the imports."""
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    with tempfile.TemporaryDirectory(prefix="logfs-protoc-") as made:
        directory, out = Path(made, "files"), Path(made, "out")
        for name, text in ((_MAIN, schema.text), *schema.references.items()):
            path = directory / name
            if os.path.isabs(name) or ".." in Path(name).parts:
                raise ValueError(f"{name!r} is not the path of an import")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        words = [f"-I{directory}", f"-I{well_known}", "--include_imports", f"-o{out}", _MAIN]
        done = subprocess.run(
            [sys.executable, "-m", "grpc_tools.protoc", *words],
            capture_output=True,
            check=False,
            timeout=_COMPILE_SECONDS,
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
        )
        if done.returncode:
            raise ValueError(done.stderr.decode(errors="replace").strip() or "protoc has failed")
        return descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())


def _message_indexes(data: bytes) -> tuple[tuple[int, ...], int]:
    """Return the indexes of the message, and the position after them. Raises `ValueError`."""
    count, at = decode_varint(data, 0)
    if not 0 <= count <= len(data):
        raise ValueError(f"{count} indexes of a message")
    if count == 0:
        return (0,), at
    indexes = []
    for _ in range(count):
        index, at = decode_varint(data, at)
        indexes.append(index)
    return tuple(indexes), at


def _message_name(file: descriptor_pb2.FileDescriptorProto, indexes: tuple[int, ...]) -> str:
    """Return the full name of a message: its place in the file, in the message there, and so on."""
    names, messages = [file.package] if file.package else [], file.message_type
    for index in indexes:
        if not 0 <= index < len(messages):
            raise LookupError(f"the schema has no message {list(indexes)}")
        names.append(messages[index].name)
        messages = messages[index].nested_type
    return ".".join(names)
