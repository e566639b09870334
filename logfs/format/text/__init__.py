"""Records as text. Imports `base`, `kernels` and `batches`.

- `rendering`: the sizes and the bytes of the two text views, lines and envelopes.
- `format_string`: records in a form of the user's choice, one by one or whole columns.
- `envelope`: one record as a line of JSON.
- `keyed_lines`: lines with keys, as envelopes.
- `envelope_parser`: many lines of JSON, as `rendering` writes them, to columns.
"""
