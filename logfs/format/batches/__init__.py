"""Records and the batches that hold them. Imports `base` and `kernels`.

- `batch`: record batches of magic 2: the header, its CRC, parsing and sealing. Begin here.
- `record`: one record.
- `columns`: many records, as numpy arrays.
- `compression`: the codecs, with bounded output.
- `legacy`: messages of magic 0 and 1, read as batches.
"""
