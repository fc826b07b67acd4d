"""Rows with which many tests begin are made once for all that follow each other, and are as new before each of them.

``@standing`` instead of ``@pytest.fixture`` declares what makes them. They are made in a transaction around those of
tests: what a test changes is rolled back as ever, and what stands falls once a test comes that does not ask for it.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any, TypeVar

import pytest
from pytest_django import DjangoDbBlocker

Made = TypeVar("Made")
Maker = Callable[[], Any]

# Seconds. What was observed a moment ago must not grow old; a busy machine takes longer than this for one test.
_FRESH = 3.0
_MAKER = "__standing__"
_COMMITTING = {"transactional_db", "live_server"}  # whoever asks for these is in no transaction


def standing(make: Callable[[], Made]) -> Any:
    """A fixture of this name that gives a copy of what ``make`` returned. ``make`` uses no other fixtures."""

    def given(db: None) -> Any:
        known = _stands.made
        return copy.deepcopy(known[make]) if make in known else make()  # asked for in the middle of a test

    setattr(given, _MAKER, make)
    return pytest.fixture(name=make.__name__)(given)


class _Stands:
    """What is there now, of which makers and since when."""

    def __init__(self) -> None:
        self.made: dict[Maker, Any] = {}
        self._since = 0.0
        self._block: Any = None

    def change(self, wanted: tuple[Maker, ...]) -> None:
        """From now on the rows of these makers stand, and no others."""
        if self._block is not None and not (tuple(self.made) == wanted and self._is_sound()):
            self.fall()
        if self._block is None and wanted:
            self._make(wanted)

    def _is_sound(self) -> bool:
        from django.db import connection

        broken = connection.closed_in_transaction or connection.needs_rollback or not connection.in_atomic_block
        return not broken and time.monotonic() - self._since < _FRESH

    def _make(self, wanted: tuple[Maker, ...]) -> None:
        from django.db import transaction

        self._block = transaction.atomic()
        self._block._from_testcase = True  # code that has to be in no transaction may begin its own
        self._block.__enter__()
        try:
            self.made, self._since = {make: make() for make in wanted}, time.monotonic()
        except BaseException:
            self.fall()
            raise

    def fall(self) -> None:
        from django.db import connection, transaction

        if self._block is None:
            return
        block, self._block, self.made = self._block, None, {}
        if connection.in_atomic_block:
            transaction.set_rollback(True)
            block.__exit__(None, None, None)


_stands = _Stands()


def _makers(item: pytest.Item) -> tuple[Maker, ...]:
    """Of everything standing that the test asks for, in the order of their names."""
    known = item._fixtureinfo.name2fixturedefs if isinstance(item, pytest.Function) else {}
    mark = item.get_closest_marker("django_db")
    if _COMMITTING.intersection(known) or (mark is not None and mark.kwargs.get("transaction")):
        return ()
    makers = (getattr(known[name][-1].func, _MAKER, None) for name in sorted(known))
    return tuple(make for make in makers if make is not None)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of the same rows follow each other, shuffled as they are."""
    items.sort(key=lambda item: [make.__qualname__ for make in _makers(item)])


@pytest.fixture(scope="session")
def _standing_rows(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[Callable[..., None]]:
    def change(*wanted: Maker) -> None:
        with django_db_blocker.unblock():
            _stands.change(wanted)

    yield change
    change()


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, Any, Any]:
    """Right before pytest-django begins a test's own transaction."""
    if fixturedef.argname == "_django_db_helper":
        request.getfixturevalue("_standing_rows")(*_makers(request.node))
    return (yield)
