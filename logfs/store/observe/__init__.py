"""Status, metrics and audit of a store. Imports the module `store`, and what `logfs.store` lists below it.

- `status`: the status of a store, of its partitions and of its maintenance.
- `metrics`: the metrics of a store as Prometheus text.
- `check`: the read-only audit; `logfs check` and the end of every test use it.
"""
