"""Rows of routing. Rules are in routing.domain."""

from routing.models.policies import RoutedEndpoint, RoutedVariant, RoutingPolicy
from routing.models.published import Configuration, Intake, RouterProcess, RoutingWindow

__all__ = [
    "Configuration",
    "Intake",
    "RoutedEndpoint",
    "RoutedVariant",
    "RouterProcess",
    "RoutingPolicy",
    "RoutingWindow",
]
