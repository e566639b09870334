"""A Kafka cluster over the network. Only this package talks to clusters, through kafka-python (`logfs[mirror]`).

- `cluster`: the connections to a cluster, and the requests of a mirror and a push. Begin here.
- `options`: the options of the connection, from a file of properties.
- `library`: the import of kafka-python, and its errors.
"""
