"""Records as text. Imports `base`, `kernels` and `batches`.

- `rendering`: measures and writes records in the two text views, lines and envelopes.
- `format_string`: writes records by a user's format string, one by one or many at once.
- `envelope`: writes and reads one record as a line of JSON, its envelope.
- `keyed_lines`: converts plain lines to envelopes with keys and headers.
- `envelope_parser`: parses many envelopes, as `rendering` writes them, into columns.
"""
