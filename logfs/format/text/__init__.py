"""Records as text. Imports `base`, `kernels` and `batches`.

- `rendering`: the sizes and the bytes of the two text views, lines and envelopes.
- `format_string`: records as text by a user's format string, one by one or whole columns.
- `envelope`: one record as a line of JSON.
- `keyed_lines`: plain lines to envelopes with keys and headers.
- `envelope_parser`: many lines of JSON, as `rendering` writes them, to columns.
"""
