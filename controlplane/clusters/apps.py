"""Clusters, node pools and nodes: facts, and the only road to a cluster."""

from django.apps import AppConfig


class ClustersConfig(AppConfig):
    name = "controlplane.clusters"
    label = "clusters"
