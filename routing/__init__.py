"""Prompts to instances: policies, telemetry and the router that never waits for Django."""
