"""Status, metrics and audit of a store.

The modules here may import the module `store`, and everything below it in the list of `logfs.store`.

- `status`: the status of a store, of its partitions and of its maintenance.
- `metrics`: the metrics of a store as Prometheus text.
- `check`: the read-only audit; `logfs check` and the end of every test use it.
"""
