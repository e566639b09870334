"""The filesystem over a store. Only this package imports pyfuse3 and trio; the modules of `nodes` import neither."""
