"""The push of topics from a store into a Kafka cluster, as a producer.

A topic keeps its batches and offsets if brokers accept them unchanged (`obstacles` are the reasons why not).
Otherwise its records can be sent in new batches with new offsets (`translation`). A file then maps the old offsets to
the new ones (`translation_map`). In this package "here" means in the store, and "there" in the cluster.

- `push`: sends the batches of topics, then sets their settings, then commits the offsets of groups. Begin here.
- `plan`: how each topic is sent, and from which offset on, also after an interrupted push.
- `obstacles`: why a partition cannot be pushed byte for byte.
- `exact_push`: reads the batches of a partition, to send them unchanged.
- `translation`: puts the records of a topic into new batches. `translation_map`: the file with the old and new
  offsets of these records.
- `sender`: sends batches to the brokers, each batch exactly once.
"""
