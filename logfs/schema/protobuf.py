"""Decodes Protobuf's binary encoding to ProtoJSON, with the field names of the schema.

Before the data, Confluent's serializer writes zigzag varints that select the message type in the .proto file: the
number of indexes, then an index for each level of nested types. A single zero means the first type.
"""

from __future__ import annotations

import base64
import errno
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc_tools
import orjson
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.message import DecodeError

from logfs.format.base.varint import decode as decode_varint

if TYPE_CHECKING:
    from collections.abc import Callable

    from logfs.schema.schemas import Schema

_MAIN = "logfs-main-schema.proto"
_PROTOC = "grpc_tools.protoc"
_COMPILE_SECONDS = 60
# Errors of creating a file that are due to its name: it is too long, or a directory or another file is in its place.
_NAME_ERRORS = (errno.ENAMETOOLONG, errno.EISDIR, errno.ENOTDIR, errno.EEXIST)
# Lines in protoc's standard error that its libraries have logged. They say nothing about the schema.
_LOG_LINE = re.compile(r"WARNING: All log messages|[IWEF][0-9]{4} ")


def compile_schema(schema: Schema) -> Callable[[bytes], bytes]:
    """Return a function that converts a serialized message of a schema to JSON.

    Raises `ValueError` if `protoc` refuses the schema, and `OSError` or `subprocess.SubprocessError` if `protoc`
    cannot be run or takes too long.

    The argument of the returned function is the data after the schema id: the message indexes, and the message. The
    function raises the `DecodeError` of `protobuf` for a message that does not fit its type, `ValueError` or
    `Corrupt` for malformed message indexes, and `LookupError` if they select no type of the schema.
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
    """Return the file descriptors of a schema and of the files that it imports, each one after its own imports."""
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    compiled = descriptor_pb2.FileDescriptorSet()
    with tempfile.TemporaryDirectory(prefix="logfs-protoc-") as made:
        sources, known, out = Path(made, "sources"), Path(made, "known"), Path(made, "out")
        sources.mkdir()
        for name, text in ((_MAIN, schema.text), *schema.references.items()):
            if os.path.isabs(name) or ".." in Path(name).parts:
                raise ValueError(f"the import {name!r} is not a relative path without '..'")
            descriptor = _parse_descriptor(text)
            if descriptor is not None:
                descriptor.name = name
                compiled.file.append(descriptor)
                continue
            _write_source(sources, name, text)
        known.write_bytes(compiled.SerializeToString())
        paths = [f"--descriptor_set_in={known}", f"-I{sources}", f"-I{well_known}"]
        try:
            done = subprocess.run(
                [sys.executable, "-m", _PROTOC, *paths, "--include_imports", f"-o{out}", _MAIN],
                capture_output=True,
                check=False,
                timeout=_COMPILE_SECONDS,
                env={**os.environ, "PYTHONWARNINGS": "ignore"},
            )
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"protoc took more than {_COMPILE_SECONDS} seconds") from None
        if done.returncode:
            said = done.stderr.decode(errors="replace").splitlines()
            reasons = [line for line in said if not _LOG_LINE.match(line)]
            raise ValueError("; ".join(reasons) or "protoc failed without a reason")
        return descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())


def _write_source(sources: Path, name: str, text: str) -> None:
    """Write a file, which a schema imports, into the directory `sources` or a directory below it.

    Raises `ValueError` if no file can have the name, and the `OSError` of any other failure.
    """
    path = sources / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    except OSError as error:
        if error.errno not in _NAME_ERRORS:
            raise
        raise ValueError(f"no file can have the name of the import {name!r}") from None


def _parse_descriptor(text: str) -> descriptor_pb2.FileDescriptorProto | None:
    """Return the file descriptor that a schema's text encodes in base64, or None if the text is source code.

    Clients in some languages register compiled schemas, and some registries return these unchanged.
    """
    try:
        data = base64.b64decode(text, validate=True)
        return descriptor_pb2.FileDescriptorProto.FromString(data)
    except (ValueError, DecodeError):
        return None


def _message_indexes(data: bytes) -> tuple[tuple[int, ...], int]:
    """Return the indexes that select the message type, and the position in `data` of the first byte after them.

    Raises `ValueError` or `Corrupt` if the indexes are malformed.
    """
    count, at = decode_varint(data, 0)
    if not 0 <= count <= len(data):
        raise ValueError(f"{count} message indexes cannot be in the {len(data)} bytes of the data")
    if count == 0:
        return (0,), at
    indexes = []
    for _ in range(count):
        index, at = decode_varint(data, at)
        indexes.append(index)
    return tuple(indexes), at


def _message_name(file: descriptor_pb2.FileDescriptorProto, indexes: tuple[int, ...]) -> str:
    """Return the full name of the message type that `indexes` select.

    The first index selects a top-level type of the file. Each further index selects a type nested in the previous
    one.
    """
    names, messages = [file.package] if file.package else [], file.message_type
    for index in indexes:
        if not 0 <= index < len(messages):
            raise LookupError(f"the schema has no message type with the indexes {list(indexes)}")
        names.append(messages[index].name)
        messages = messages[index].nested_type
    return ".".join(names)
