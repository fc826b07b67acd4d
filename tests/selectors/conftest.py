"""Selectors are asked at one moment, so that no test depends on how long it takes."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from django.utils import timezone


@pytest.fixture
def now(db: None) -> datetime:
    """The moment of the question. Rows of the factories were observed just before."""
    return timezone.now()


@pytest.fixture(autouse=True)
def _fast_passwords(settings: Any) -> None:
    """Hashing slowly is tested by Django; here it would be most of the time."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
