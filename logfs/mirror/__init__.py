"""A mirror of a Kafka cluster: topics are followed into a store, batch by batch and offset by offset.

- `mirror`: which topics and partitions are mirrored, their settings, and the groups. Begin here.
- `fetcher`: a thread for each broker, which fetches what the broker leads.
- `partition_mirror`: one partition: where it differs from its source, and what is appended.
"""
