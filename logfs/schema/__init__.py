"""Decodes values that Confluent's serializers have written (Avro, Protobuf and JSON Schema) to JSON.

    decoder = Decoder(open_schemas("http://localhost:8081"))
    decoder.decode(value)          # b'{"id":7,"total":"12.50"}'

- `decoder`: decodes values to JSON, by the schema whose id is in the value. Begin here.
- `avro`, `protobuf`, `json_schema`: one module for each type of schema. `compile_schema` returns a function that
  decodes data.
- `avro_forms`: checks of an Avro schema before it is used.
- `schemas`: the class of a schema, and the interface of all sources of schemas.
- `open_schemas`: opens the source of schemas that the user has named: one of the next three modules.
- `registry`: a schema registry, by HTTP.
- `schema_files`: a directory with a file for each schema.
- `schema_log`: the topic `_schemas` of a log directory, in which Confluent's registry keeps its schemas.
"""
