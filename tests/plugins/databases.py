"""Migrations run once for the whole session: the first worker that needs its database lends it to the others.

Only where there are workers, and on the server that was started for them.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.plugins.servers import is_ours

_MODEL = "hearth_tests_model"


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, Any, Any]:
    """Around pytest-django's making of the database; whoever comes meanwhile waits for the model."""
    if fixturedef.argname != "django_db_setup" or not _has_others(request.config):
        return (yield)
    made = Path(os.environ["HEARTH_STATE_DIR"], "database-model")
    with made.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if made.exists():
            _follow()
        result = yield
        if not made.exists():
            with request.getfixturevalue("django_db_blocker").unblock():
                _lend()
            made.touch()
    return result


def _has_others(config: pytest.Config) -> bool:
    kept = config.getoption("reuse_db") or config.getoption("nomigrations")
    return "PYTEST_XDIST_WORKER" in os.environ and is_ours("DATABASE_URL") and not kept


def _follow() -> None:
    """What is copied has its tables and the list of its migrations already."""
    from django.db import connection

    connection.settings_dict["TEST"] |= {"TEMPLATE": _MODEL, "MIGRATE": False}


def _lend() -> None:
    """A copy, as PostgreSQL takes none of a database in which somebody works."""
    from django.db import connections

    connection: Any = connections["default"]
    connection.close()
    connection.close_pool()
    source, model = (connection.ops.quote_name(name) for name in (connection.settings_dict["NAME"], _MODEL))
    with connection._nodb_cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {model} TEMPLATE {source}")
