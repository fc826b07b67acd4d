"""What pages and REST tell of launches."""
