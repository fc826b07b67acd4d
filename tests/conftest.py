"""What every test gets: the three people, cheap passwords, patience with a busy machine. Servers come from
tests/plugins, rows from tests/factories.py.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

if TYPE_CHECKING:
    from controlplane.accounts.models import User


# How long an example takes says how busy the machine is; a test that hangs meets pytest's own bound. What CI says of a
# commit depends on the commit alone; on people's machines every run looks at other examples.
hypothesis_settings.register_profile(
    "hearth", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=bool(os.environ.get("CI"))
)
hypothesis_settings.load_profile("hearth")


_FLEETS = {"world", "make_world"}  # fixtures that live through rounds of a whole fleet


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what takes long, so that `make test-fast` can leave it to `make test`."""
    for item in items:
        if _FLEETS.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.thorough)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """What was imported stays: no search for garbage needs to look at it again. Garbage of tests is found no later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True)
def cheap_passwords(settings: Any) -> None:
    """Hashing slowly is tested by Django; here it would be most of the time."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


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
