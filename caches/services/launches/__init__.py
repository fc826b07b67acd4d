"""Launches: what observers tell, assembled into rows; and trials that provoke them."""
