"""The push of topics from a store into a Kafka cluster, as a producer.

A topic keeps its batches and offsets if brokers accept them unchanged (`obstacles` are the reasons why not).
Otherwise its records can be sent in new batches with new offsets (`translation`). A file then maps the old offsets to
the new ones (`translation_map`). In this package "here" means in the store, and "there" in the cluster.

- `push`: the batches, settings and groups, in order. Begin here.
- `plan`: how each topic is sent, and from which offset on, also after an interrupted push.
- `obstacles`: why a partition cannot be pushed byte for byte.
- `exact_push`: the batches of a partition as they are.
- `translation`: the records of a topic in new batches. `translation_map`: the file with their old and new offsets.
- `sender`: sends batches to the brokers, each exactly once.
"""
