"""Launches: what observers tell, ordered, labelled, compared."""
