"""Tests of `logfs.api`: what `import logfs` gives, promise by promise."""
