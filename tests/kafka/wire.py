"""Produce requests on the wire protocol: Kafka's clients send only batches that they have built themselves."""

from __future__ import annotations

import socket
import struct

# Produce, in the oldest version that brokers still accept. Later versions add nothing about a batch.
_PRODUCE, _VERSION = 0, 3
_ALL_REPLICAS = -1
_TIMEOUT_SECONDS = 30

OUT_OF_ORDER_SEQUENCE = 45


def produce(servers: str, topic: str, batch: bytes, partition: int = 0) -> tuple[int, int]:
    """Send one record batch unchanged; return the broker's error code (0 for none) and the first record's offset."""
    name = _string(topic)
    body = b"".join(
        (
            struct.pack(">hhi", _PRODUCE, _VERSION, 0),
            _string("test"),
            struct.pack(">hhi", -1, _ALL_REPLICAS, _TIMEOUT_SECONDS * 1000),
            struct.pack(">i", 1) + name + struct.pack(">iii", 1, partition, len(batch)) + batch,
        )
    )
    host, port = servers.split(":")
    with socket.create_connection((host, int(port)), timeout=_TIMEOUT_SECONDS) as connection:
        connection.sendall(struct.pack(">i", len(body)) + body)
        with connection.makefile("rb") as answers:
            (size,) = struct.unpack(">i", answers.read(4))
            answer = answers.read(size)
    # After the correlation id: one topic, its name, one partition and its number.
    error, offset = struct.unpack_from(">hq", answer, 4 + 4 + len(name) + 4 + 4)
    return error, offset


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()
