"""Searches for the configuration with the highest throughput."""
