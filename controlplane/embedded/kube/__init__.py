"""A real Kubernetes on this machine: etcd, API server, scheduler, controller manager, and nodes with pods."""
