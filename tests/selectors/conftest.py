"""Selectors are asked at one moment, so that no test depends on how long it takes."""

from __future__ import annotations

from datetime import datetime

import pytest
from django.utils import timezone


@pytest.fixture
def now(db: None) -> datetime:
    """The moment of the question. Rows of the factories were observed just before."""
    return timezone.now()
