"""Tests of logfs against Apache Kafka: a real broker, its clients and its tools."""
