"""The message types that Kafka defines by schema files, decoded and encoded by tables of their fields.

Imports `base` and `batches`.

- `message`: encodes and decodes a message by the table of its fields.
- `control`: the keys and values of control records, such as the ends of transactions.
- `group_record`: the keys and values of `__consumer_offsets`.
- `transaction_record`: the keys and values of `__transaction_state`.
- `group_schema`: the tables of the fields of these keys and values.
- `requests`: the requests of Kafka's clients and their responses, by the tables in `requests.txt`.
"""
