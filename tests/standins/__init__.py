"""Servers that stand in for what cannot run here: real HTTP on loopback, speaking the documented API of the other side.

Only the border is theirs: how the hub's or the cloud's own machines work behind it is not modelled.
"""
