"""A mirror of a Kafka cluster: topics are copied into a store, with the same batches and offsets, and kept current.

- `mirror`: finds the topics and partitions to mirror, also those that are created later, and copies the settings of
  the topics and the offsets of groups. Begin here.
- `fetcher`: a thread for each broker, which fetches the partitions that the broker leads.
- `partition_mirror`: one partition: drops records that its source does not have, and appends fetched batches.
"""
