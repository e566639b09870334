"""A client that sends any request of Kafka's protocol, in any version, or any bytes."""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING, Any

from logfs.format.base.varint import encode_unsigned
from logfs.format.messages.requests import API_VERSIONS, message_schema, versions_of

if TYPE_CHECKING:
    from collections.abc import Mapping

PRODUCE, FETCH, LIST_OFFSETS, METADATA, EPOCHS, CLUSTER, TOPICS = 0, 1, 2, 3, 23, 60, 75
SECONDS = 30
SOFTWARE = {"clientSoftwareName": "test", "clientSoftwareVersion": "1"}
"""What an ApiVersions request must tell from version 3 on."""


class RawClient:
    """A connection to a broker or to a `Server`. A context manager."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host.strip("[]"), int(port)), timeout=SECONDS)
        self._asked = 0

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def ask(self, key: int, version: int, **fields: object) -> Mapping[str, Any]:
        """Send a request, and return the fields of the answer. Fields that are not given have their defaults."""
        self.send(key, version, **fields)
        return self.answer(key, version)

    def send(self, key: int, version: int, **fields: object) -> None:
        """Send a request, without waiting for the answer."""
        self._asked += 1
        client = b"test"
        head = struct.pack(">hhih", key, version, self._asked, len(client)) + client
        if version >= versions_of(key).flexible:
            head += encode_unsigned(0)
        self.send_frame(head + message_schema("request", key, version).encode_body(version, fields))

    def send_frame(self, data: bytes) -> None:
        """Send bytes as a request, with their length before them."""
        self.socket.sendall(struct.pack(">i", len(data)) + data)

    def answer(self, key: int, version: int) -> Mapping[str, Any]:
        """Receive one answer to a request of this key and version."""
        data = self.received()
        at = 4
        if version >= versions_of(key).flexible and key != API_VERSIONS:
            assert data[at] == 0, "no tagged fields in the header"
            at += 1
        return message_schema("response", key, version).parse_body(data, version, at).fields

    def received(self) -> bytes:
        """Receive the bytes of one answer. Raises `EOFError` if the connection is closed before."""
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            if not more:
                raise EOFError(f"the connection was closed after {len(data)} of {size} bytes")
            data += more
        return data


def fetched(
    client: RawClient, topic: str, offset: int, *, version: int = 12, **options: Any
) -> Mapping[str, Any]:
    """Return the answer to a Fetch request for partition 0 of one topic.

    `options` are fields of the request, or `partition_bytes`, `epoch`, or `topic_id` from version 13 on.
    """
    partition = {
        "partition": options.pop("partition", 0),
        "fetchOffset": offset,
        "partitionMaxBytes": options.pop("partition_bytes", 1 << 20),
        "currentLeaderEpoch": options.pop("epoch", -1),
    }
    names = {"topicId": options.pop("topic_id")} if version >= 13 else {"topic": topic}
    topics = [{**names, "partitions": [partition]}]
    answer = client.ask(FETCH, version, topics=topics, **options)
    assert answer["errorCode"] == 0
    found: Mapping[str, Any] = answer["responses"][0]["partitions"][0]
    return found
