"""A mirror of a Kafka cluster: topics are copied into a store, with the same batches and offsets, and kept current.

- `mirror`: which topics and partitions are mirrored, their settings, and the groups. Begin here.
- `fetcher`: a thread for each broker, which fetches what the broker leads.
- `partition_mirror`: one partition: where it differs from its source, and what is appended.
"""
