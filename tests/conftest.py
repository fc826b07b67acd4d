"""What every test gets: the three people, cheap passwords, patience with a busy machine. Servers come from
tests/plugins, rows from tests/factories.py.
"""

from __future__ import annotations

import gc
import itertools
import os
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from whitenoise.middleware import WhiteNoiseMiddleware  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from controlplane.accounts.models import User


# How long an example takes says how busy the machine is; a test that hangs meets pytest's own bound. What CI says of a
# commit depends on the commit alone; on people's machines every run looks at other examples.
hypothesis_settings.register_profile(
    "hearth", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=bool(os.environ.get("CI"))
)
hypothesis_settings.load_profile("hearth")


_SETTLED = (30, 300)  # so many tests of a worker are over
_finished = itertools.count(1)
_FLEETS = {"world", "make_world"}  # fixtures that live through rounds of a whole fleet


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what takes long, so that `make test-fast` can leave it to `make test`."""
    for item in items:
        if _FLEETS.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.thorough)


def _keep() -> None:
    """What is there by now stays: no search for garbage needs to look at it again. Later garbage is found no later."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """What was imported stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        _keep()


@pytest.hookimpl(trylast=True)
def pytest_runtest_logfinish() -> None:
    """So does what the first tests made for good: templates, addresses, what Django knows of the models."""
    if next(_finished) in _SETTLED:
        _keep()


@pytest.fixture(autouse=True)
def cheap_passwords(settings: Any) -> None:
    """Hashing slowly is tested by Django; here it would be most of the time."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture(autouse=True)
def nobody_outside_asked(settings: Any) -> None:
    """Dry runs of documents ask registries by name; the tests of that bring their own."""
    settings.DRY_RUN_SECONDS = 0


@pytest.fixture(autouse=True, scope="session")
def static_files_found_once() -> Iterator[None]:
    """Every test's client loads the middlewares anew; which files there are is the same for all of them."""
    find, found = WhiteNoiseMiddleware.add_files_from_finders, dict[str, dict[str, Any]]()

    def find_once(self: WhiteNoiseMiddleware) -> None:
        if self.static_prefix not in found:
            find(self)
            found[self.static_prefix] = dict(self.files)
        self.files.update(found[self.static_prefix])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WhiteNoiseMiddleware, "add_files_from_finders", find_once)
        yield


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
