"""The way back into a cluster: the topics of a store are pushed into a Kafka cluster.

A topic goes byte for byte, offset for offset, where brokers accept that (`obstacles` tells why not). Otherwise its
records can be given new offsets (`translation`), and a map tells which (`translation_map`).

- `push`: the batches, settings and groups, in order. Begin here.
- `plan`: which topic goes which way, and where it begins, or goes on after an interruption.
- `obstacles`: why a partition cannot be pushed byte for byte.
- `exact_push`: the batches of a partition as they are.
- `translation`: the records of a topic in new batches. `translation_map`: the file that has their offsets.
- `sender`: sends batches to the brokers, each exactly once.
"""
