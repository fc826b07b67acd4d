"""Catalogue, pins, entries: what is warm where, and why."""

from django.apps import AppConfig


class CachesConfig(AppConfig):
    name = "caches"
    label = "caches"
