"""The requests that are answered: one table, from which clients are told what there is."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from logfs.format.messages.requests import API_VERSIONS, versions_of
from logfs.server.error_codes import ErrorCode
from logfs.server.fetch import fetch
from logfs.server.metadata import describe_cluster, describe_topic_partitions, metadata
from logfs.server.offsets import list_offsets, offset_for_leader_epoch
from logfs.server.produce import produce

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from logfs.server.broker import Broker, Request

    # A function that answers a request with the fields of the response, or with None if no answer is sent and the
    # connection is to be closed.
    Handler = Callable[[Broker, Request], Mapping[str, Any] | None]


# The first version of an ApiVersions request that names the client's software, and what a name may be.
_SOFTWARE = 3
_SOFTWARE_WORD = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")


class Api(NamedTuple):
    """One kind of request: its key, and the function that answers it.

    `told` is the lowest version that clients are told of, if it is below the lowest that is answered.
    """

    key: int
    handler: Handler
    told: int | None = None


def api_versions(broker: Broker, request: Request) -> Mapping[str, Any]:
    """Answer an ApiVersions request: what is answered, in which versions."""
    fields = request.fields
    told = (fields["clientSoftwareName"], fields["clientSoftwareVersion"])
    if request.version >= _SOFTWARE and not all(map(_SOFTWARE_WORD.fullmatch, told)):
        return {"errorCode": ErrorCode.INVALID_REQUEST}
    return _versions()


def _versions() -> Mapping[str, Any]:
    return {
        "apiKeys": [
            {
                "apiKey": key,
                "minVersion": versions_of(key).lowest if api.told is None else api.told,
                "maxVersion": versions_of(key).highest,
            }
            for key, api in sorted(APIS.items())
        ]
    }


def unsupported_versions(broker: Broker, request: Request) -> Mapping[str, Any]:
    """Answer an ApiVersions request of an unknown version: the error, with the versions, in version 0."""
    return {**_versions(), "errorCode": ErrorCode.UNSUPPORTED_VERSION}


APIS = {
    each.key: each
    for each in (
        # Without Produce librdkafka fetches nothing, and without its versions 0 to 2, which Kafka 4 does not answer
        # either, it compresses nothing (KAFKA-18659).
        Api(0, produce, told=0),
        Api(1, fetch),
        Api(2, list_offsets),
        Api(3, metadata),
        Api(API_VERSIONS, api_versions),
        Api(23, offset_for_leader_epoch),
        Api(60, describe_cluster),
        Api(75, describe_topic_partitions),
    )
}
