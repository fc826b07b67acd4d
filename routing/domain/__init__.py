"""Pure decisions of the router: the standard library only."""
