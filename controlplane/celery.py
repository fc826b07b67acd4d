"""The Celery application. Tasks are short, idempotent steps that take ids only (ARCHITECTURE.md, rule 8)."""

from __future__ import annotations

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

app = Celery("hearth")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["caches"])
