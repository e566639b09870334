"""Decoding of values that Confluent's serializers wrote: Avro, Protobuf and JSON Schema, to JSON.

    decoder = Decoder(open_schemas("http://localhost:8081"))
    decoder.decode(value)          # b'{"id":7,"total":"12.50"}'

- `decoder`: bytes to JSON, by the schema that they name. Begin here.
- `avro`, `protobuf`, `json_schema`: one kind of schema each: the function that decodes what was written by it.
- `avro_forms`: what can be told of an Avro schema before any data are decoded by it.
- `schemas`: what a schema is, and what the places of schemas have in common.
- `open_schemas`: opens the place that a user names, which is one of these:
- `registry`: a schema registry, by HTTP.
- `schema_files`: a directory with a file for each schema.
- `schema_log`: the topic `_schemas`, in which Confluent's registry keeps its schemas, in a log directory.
"""
