"""The demo of ``make run``, through the services that people use."""
