"""The router process. Imports no Django; shares the domain with the control plane."""
