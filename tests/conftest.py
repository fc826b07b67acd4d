"""What every test may ask for: the three people. Servers come from tests/plugins, rows from tests/factories.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from controlplane.accounts.models import User


def _person(name: str, role: str) -> User:
    # Imported late: models must not load before the server plugin has set DATABASE_URL.
    from tests import factories

    return factories.user(username=name, role=role)


@pytest.fixture
def viewer(db: None) -> User:
    """Victor may look."""
    return _person("victor", "Viewer")


@pytest.fixture
def operator(db: None) -> User:
    """Olga may pin, evict and retry."""
    return _person("olga", "Operator")


@pytest.fixture
def admin(db: None) -> User:
    """Ada may do everything."""
    return _person("ada", "Admin")
