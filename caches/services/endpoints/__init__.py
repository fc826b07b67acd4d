"""Endpoints: from a document to pins, a gated Deployment and its rollouts."""
