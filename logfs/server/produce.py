"""Produce: refused, because the server only reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logfs.server.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logfs.server.broker import Broker, Request

_REASON = "logfs serve only reads"


def produce(broker: Broker, request: Request) -> Mapping[str, Any] | None:
    """Refuse the batches of each partition. Returns None if the client expects no answer (`acks=0`)."""
    if not request.fields["acks"]:
        return None
    return {
        "responses": [
            {
                "name": topic["name"],
                "topicId": topic["topicId"],
                "partitionResponses": [
                    {
                        "index": each["index"],
                        "errorCode": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                        "errorMessage": _REASON,
                        "baseOffset": -1,
                    }
                    for each in topic["partitionData"]
                ],
            }
            for topic in request.fields["topicData"]
        ]
    }
