"""A mirror of a Kafka cluster: topics are copied into a store, with the same batches and offsets, and kept current.

- `mirror`: which topics and partitions are mirrored, also after a topic was deleted or created again, their settings,
  and the groups. Begin here.
- `fetcher`: a thread for each broker, which fetches the partitions that the broker leads.
- `partition_mirror`: one partition: drops records that its source does not have, and appends fetched batches.
"""
