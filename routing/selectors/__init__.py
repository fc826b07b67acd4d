"""Reads for pages, REST and services."""
