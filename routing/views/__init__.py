"""Pages of routing."""
