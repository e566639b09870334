"""Tests of logfs against Apache Kafka: a real broker, its clients and its tools.

- `distribution`, `helper`: the jars of the release that `pom.xml` names, and one JVM in which its clients and tools
  run (`java/`). `client` and `tools` call them. `wire` sends requests that Kafka's clients would not send.
- `broker`, `cluster`: brokers of their own. `topics`: topics of every kind. `copies`: mirrors of them.
- `storage`, `story`: random steps, done by Kafka's storage classes and by logfs.
- `impatient`: a `logfs` that does not wait for a cluster.
"""
