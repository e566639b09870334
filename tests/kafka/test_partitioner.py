"""The partitions of keys, against Kafka's own partitioner."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from logfs.format.base.murmur2 import partition_of

if TYPE_CHECKING:
    from tests.kafka.helper import Helper


def test_kafka_puts_a_key_into_the_same_partition(helper: Helper) -> None:
    """Keys of every length up to 40 and some long ones, for several numbers of partitions."""
    chance = random.Random(11)
    for size in [*range(41), 255, 1000]:
        for partitions in (1, 3, 50, 1000):
            key = chance.randbytes(size)
            found = helper.call("partitionOfKey", key=key, partitions=partitions)
            assert partition_of(key, partitions) == found
