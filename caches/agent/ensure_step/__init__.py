"""The ensure step: the init container that makes an artifact present before a pod's own containers start.

It asks the node's agent. Only where none answers does it fetch by itself, with the pod's own credentials: into the
store, whose lock then is free, or into the pod where the store has no room or the node no store. The pod always starts
with the right bytes or not at all, and what was found is written down as measured.
"""
