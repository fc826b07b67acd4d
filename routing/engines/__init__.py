"""Engines for where there is no accelerator: a real one on the CPU, and a stand-in that only keeps time. No Django."""
