"""A Kafka cluster over the network. Only this package talks to clusters, through kafka-python (`logfs[mirror]`).

- `cluster`: what is asked of a cluster, as requests of Kafka's protocol. Begin here.
- `options`: the options of the connection, from a file of properties.
- `library`: kafka-python itself, and its errors.
"""
