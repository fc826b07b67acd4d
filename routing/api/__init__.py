"""REST of routing."""
