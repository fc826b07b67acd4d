"""Endpoints: what a document asks for, and what is made of it."""
