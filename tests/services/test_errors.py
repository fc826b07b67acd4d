"""Errors as faces show them: the status of each class, what may be tried again, and ids that sort by time."""

from __future__ import annotations

from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

import pytest

from controlplane import errors
from controlplane.errors import FieldError, HearthError, Permanent, Transient
from controlplane.ids import new_id
from controlplane.operations.services import problem_document

CLASSES: dict[type[HearthError], int] = {
    HearthError: 500,
    errors.Permanent: 422,
    errors.Transient: 503,
    errors.Invalid: 400,
    errors.Unauthenticated: 401,
    errors.Denied: 403,
    errors.Missing: 404,
    errors.Clash: 409,
    errors.Stale: 412,
}


@pytest.mark.parametrize("kind", CLASSES)
def test_each_class_has_its_status_and_reads_as_its_sentence(kind: type[HearthError]) -> None:
    error = kind("area:who:what", "It is so.")
    assert (error.status, str(error), error.code, error.detail, error.errors) == (
        CLASSES[kind], "It is so.", "area:who:what", "It is so.", (),
    )  # fmt: skip
    assert problem_document(error)["title"] == HTTPStatus(CLASSES[kind]).phrase, "as an answer over REST has it"


def test_no_class_is_left_out() -> None:
    found = {one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, HearthError)}
    assert found == set(CLASSES)


@pytest.mark.parametrize("kind", [kind for kind in CLASSES if issubclass(kind, Permanent)])
def test_what_will_fail_again_is_never_taken_for_what_may_work_later(kind: type[HearthError]) -> None:
    assert not issubclass(kind, Transient)


def test_a_status_of_its_own_is_that_errors_alone() -> None:
    assert Permanent("a:b:c", "x", status=507).status == 507
    assert Permanent("a:b:c", "x").status == 422


def test_what_may_work_later_says_when_and_that_nothing_is_to_do() -> None:
    at = datetime(2026, 9, 1, tzinfo=UTC)
    error = Transient("store:source:slow", "Slow down.", reason="SourceUnavailable", retry_at=at)
    assert (error.retry_at, error.reason) == (at, "SourceUnavailable")
    assert error.next_step == "Nothing to do: it is tried again by itself."
    assert Transient("a:b:c", "x").retry_at is None


def test_wrong_fields_are_kept_in_order_and_only_shown_where_there_are_some() -> None:
    wrong = [FieldError("b", "1", "x"), FieldError("", "2", "y")]
    document: dict[str, Any] = problem_document(errors.Invalid("a:b:c", "x", errors=wrong))
    assert [one["field"] for one in document["errors"]] == ["b", ""]
    assert "errors" not in problem_document(errors.Invalid("a:b:c", "x"))


def test_ids_sort_by_time_and_never_repeat() -> None:
    made = [new_id() for _ in range(2000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)
    assert {one.version for one in made} == {7}
