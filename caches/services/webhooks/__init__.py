"""Webhooks: what is announced, to whom, and that it arrives."""
