"""Limits that processes share: through a file on one machine, or a Redis server for a fleet."""
