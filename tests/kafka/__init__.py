"""logfs against Apache Kafka itself: a real broker, its clients and its tools."""
