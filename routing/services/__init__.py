"""Writes, each in a transaction of its own."""
