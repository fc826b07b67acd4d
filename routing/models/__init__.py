"""Rows of routing. Rules are in routing.domain."""

from routing.models.policies import RoutedEndpoint, RoutedVariant, RoutingPolicy
from routing.models.published import Configuration, RouterProcess, RoutingWindow

__all__ = ["Configuration", "RoutedEndpoint", "RoutedVariant", "RouterProcess", "RoutingPolicy", "RoutingWindow"]
