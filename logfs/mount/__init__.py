"""The filesystem over a store; pyfuse3 and trio live here alone, and in nothing below `nodes`."""
