"""A server of Kafka's protocol: any Kafka client reads an open store.

Begin with `apis`, the table of the requests.

- `server`: the listening socket, a thread for each connection, and the limits.
- `connection`: the requests of one client and the answers, as bytes.
- `broker`: what all requests have in common: the store, and the names and ids of topics.
- `metadata`, `offsets`, `fetch`, `produce`, `topics`, `configs`, `describe`: the
  functions that answer the requests.
- `error_codes`: the codes that tell clients of errors, and the errors of a part of a request.
"""
