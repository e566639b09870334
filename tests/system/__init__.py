"""Campaigns against the whole system: real mounts, power cuts, kills, faults and load, repeatable from a seed."""
