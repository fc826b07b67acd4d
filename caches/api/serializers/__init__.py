"""The shapes of api.md, one file for each kind of thing."""
