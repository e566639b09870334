"""A mirror of a Kafka cluster: topics are followed into a store, batch by batch and offset by offset.

Only this package talks to a cluster, and only its module `cluster` imports kafka-python (`logfs[mirror]`).

- `mirror`: which topics and partitions are mirrored, their settings, and the groups. Begin here.
- `fetcher`: a thread for each broker, which fetches what the broker leads.
- `partition_mirror`: one partition: where it differs from its source, and what is appended.
- `cluster`: what is asked of a cluster, as requests of Kafka's protocol.
- `options`: the options of the connection, from a file of properties.
"""
