"""The control loop's round of a pool, step by step."""
