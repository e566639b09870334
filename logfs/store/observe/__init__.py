"""A store seen from outside. Imports all of `store`.

- `status`: the status of a store and of its partitions, maintenance included.
- `metrics`: what a store counts, as Prometheus text.
- `check`: the read-only audit; `logfs check` and the end of every test use it.
"""
