"""Campaigns against a whole system: real mounts, real power cuts, kills, faults and load, repeated from a seed."""
