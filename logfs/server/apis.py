"""The requests that are answered: one table, from which clients are told what there is."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from logfs.format.messages.requests import API_VERSIONS, versions_of
from logfs.server.configs import alter_configs, describe_configs, incremental_alter_configs
from logfs.server.describe import describe_log_dirs, describe_producers
from logfs.server.error_codes import ErrorCode
from logfs.server.fetch import fetch
from logfs.server.metadata import (
    describe_cluster,
    describe_topic_partitions,
    list_partition_reassignments,
    metadata,
)
from logfs.server.offsets import list_offsets, offset_for_leader_epoch
from logfs.server.produce import init_producer_id, produce
from logfs.server.topics import create_partitions, create_topics, delete_records, delete_topics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from logfs.server.broker import Broker, Request

    # A function that answers a request with the fields of the response, or with None if no answer is to be sent.
    Handler = Callable[[Broker, Request], Mapping[str, Any] | None]


# The first version of an ApiVersions request that names the client's software, and what a name may be.
_SOFTWARE = 3
_SOFTWARE_WORD = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")


class Api(NamedTuple):
    """One kind of request: its key, and the function that answers it.

    `told` is the lowest version that clients are told of, if it is below the lowest that is answered. Requests that
    have `writes` are not answered if the store is read-only.
    """

    key: int
    handler: Handler
    told: int | None = None
    writes: bool = False


def api_versions(broker: Broker, request: Request) -> Mapping[str, Any]:
    """Answer an ApiVersions request: what is answered, in which versions."""
    fields = request.fields
    told = (fields["clientSoftwareName"], fields["clientSoftwareVersion"])
    if request.version >= _SOFTWARE and not all(map(_SOFTWARE_WORD.fullmatch, told)):
        return {"errorCode": ErrorCode.INVALID_REQUEST}
    return _versions(broker)


def _versions(broker: Broker) -> Mapping[str, Any]:
    return {
        "apiKeys": [
            {
                "apiKey": key,
                "minVersion": versions_of(key).lowest if api.told is None else api.told,
                "maxVersion": versions_of(key).highest,
            }
            for key, api in sorted(APIS.items())
            if is_answered(broker, key)
        ]
    }


def unsupported_versions(broker: Broker, request: Request) -> Mapping[str, Any]:
    """Answer an ApiVersions request of an unknown version: the error, with the versions, in version 0."""
    return {**_versions(broker), "errorCode": ErrorCode.UNSUPPORTED_VERSION}


def is_answered(broker: Broker, key: int) -> bool:
    """Whether requests with an API key are answered."""
    api = APIS.get(key)
    return api is not None and not (api.writes and broker.store.read_only)


APIS = {
    each.key: each
    for each in (
        # A read-only store refuses batches, but without Produce librdkafka fetches nothing. Without its versions 0 to
        # 2, which Kafka 4 does not answer either, librdkafka compresses nothing (KAFKA-18659).
        Api(0, produce, told=0),
        Api(1, fetch),
        Api(2, list_offsets),
        Api(3, metadata),
        Api(API_VERSIONS, api_versions),
        Api(19, create_topics, writes=True),
        Api(20, delete_topics, writes=True),
        Api(21, delete_records, writes=True),
        Api(22, init_producer_id, writes=True),
        Api(23, offset_for_leader_epoch),
        Api(32, describe_configs),
        Api(33, alter_configs, writes=True),
        Api(35, describe_log_dirs),
        Api(37, create_partitions, writes=True),
        Api(44, incremental_alter_configs, writes=True),
        Api(46, list_partition_reassignments),
        Api(60, describe_cluster),
        Api(61, describe_producers),
        Api(75, describe_topic_partitions),
    )
}
