"""The node agent: one process a node that makes the node's store equal to what its NodeCache asks for. No Django."""

VERSION = "0.1.0"
