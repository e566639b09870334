"""Tests of the server of Kafka's protocol. `raw_client` sends any request in any version."""
