"""Container images: resolved, held on nodes, revoked."""
