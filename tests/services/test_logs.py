"""One line for each event, readable by a program, with the ids that lead to it and nothing of a secret."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
import structlog
from celery import Celery
from django.db import transaction

from controlplane import celery as queue
from controlplane.logs import logging_config

ID = UUID("01a22931-d6c5-7290-ab66-eb50c1230880")


@pytest.fixture(autouse=True)
def _no_context() -> Iterator[None]:
    structlog.contextvars.clear_contextvars()
    yield
    structlog.contextvars.clear_contextvars()


def formatter(*, as_json: bool = True) -> logging.Formatter:
    config = logging_config(level="INFO", json=as_json)["formatters"]["structured"]
    made: logging.Formatter = structlog.stdlib.ProcessorFormatter(
        processor=config["processor"], foreign_pre_chain=config["foreign_pre_chain"]
    )
    return made


def printed(message: Any, *, as_json: bool = True, error: BaseException | None = None, **event: Any) -> str:
    """What a line looks like: of structlog when there are fields, of the standard library otherwise."""
    handled: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            handled.append(record)

    logger = logging.Logger("hearth.test")
    logger.addHandler(Keep())
    if event:
        bound = structlog.stdlib.BoundLogger(logger, structlog.get_config()["processors"], {})
        bound.error(message, exc_info=error, **event)
    else:
        logger.error(message, exc_info=error)
    [record] = handled
    return formatter(as_json=as_json).format(record)


def line(message: Any, **event: Any) -> dict[str, Any]:
    text = printed(message, **event)
    assert "\n" not in text
    found: dict[str, Any] = json.loads(text)
    return found


def test_both_kinds_of_logger_print_the_same_shape() -> None:
    ours, foreign = line("entry.failed", node="n1"), line("entry failed")
    for found in (ours, foreign):
        assert (found["level"], found["logger"]) == ("error", "hearth.test")
        at = datetime.fromisoformat(found["timestamp"])
        assert abs((datetime.now(UTC) - at).total_seconds()) < 60
    assert (ours["event"], ours["node"], foreign["event"]) == ("entry.failed", "n1", "entry failed")


@pytest.mark.parametrize("text", ["two\nlines", "ünï 😀", "\x1b[31mred", "nul \0", "\u2028 line", '{"a": 1}'])
def test_whatever_is_in_a_message_stays_on_its_line(text: str) -> None:
    assert line("x", detail=text)["detail"] == text
    assert line(text)["event"] == text


@pytest.mark.parametrize(
    "value", [ID, datetime(2026, 9, 1, tzinfo=UTC), {1, 2}, b"\xff", ValueError("odd"), object(), float("inf")]
)
def test_a_value_that_is_no_json_does_not_lose_the_line(value: Any) -> None:
    assert line("x", value=value)["event"] == "x"


def test_ids_of_the_context_are_in_every_line() -> None:
    with structlog.contextvars.bound_contextvars(request_id="r-1", operation_id=str(ID)):
        for found in (line("ours", a=1), line("foreign")):
            assert (found["request_id"], found["operation_id"]) == ("r-1", str(ID))
    assert "request_id" not in line("after")


def raised() -> BaseException:
    password = "hunter" + "2"
    try:
        raise RuntimeError(f"refused after {len(password)} characters")
    except RuntimeError as error:
        return error


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize("event", [{}, {"kind": "PinWarm"}])
def test_a_traceback_shows_where_and_never_the_values_of_variables(as_json: bool, event: dict[str, Any]) -> None:
    text = printed("operation.bug", as_json=as_json, error=raised(), **event)
    assert "refused after 7 characters" in text and "in raised" in text
    assert "hunter2" not in text


def test_the_level_and_the_form_are_what_is_asked_for() -> None:
    config = logging_config(level="WARNING", json=False)
    assert config["root"] == {"handlers": ["stderr"], "level": "WARNING"}
    assert not config["disable_existing_loggers"]
    with pytest.raises(ValueError):
        json.loads(printed("plain", as_json=False))


def test_a_sweep_that_runs_all_the_time_is_not_logged_each_time() -> None:
    quiet = logging_config(level="DEBUG", json=True)["loggers"]
    assert {quiet[name]["level"] for name in ("celery.beat", "celery.app.trace", "celery.worker.strategy")} == {
        "WARNING"
    }


def test_the_paths_of_webhooks_are_in_no_log_even_at_debug() -> None:
    """The library that posts logs every path that it calls, at DEBUG."""
    assert logging_config(level="DEBUG", json=True)["loggers"]["urllib3"]["level"] == "INFO"


def test_a_broker_that_does_not_answer_is_logged_without_its_password(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(queue, "app", Celery("elsewhere", broker="redis://user:hunter2@127.0.0.1:9/0"))
    assert not queue.publish("operations.step", str(ID))
    assert "broker.unreachable" in caplog.text and str(ID) in caplog.text
    assert "hunter2" not in caplog.text


def test_every_task_that_beat_sends_exists_and_expires() -> None:
    queue.app.loader.import_default_modules()
    for name, entry in queue.app.conf.beat_schedule.items():
        assert entry["task"] in queue.app.tasks, name
        # A worker that comes back finds no backlog of a task that beat sends again and again.
        assert 0 < entry["options"]["expires"] <= max(2.0, entry["schedule"]), name


@pytest.fixture
def sent(db: None, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []

    def publish(task: str, *ids: str) -> bool:
        found.append((task, *ids))
        return True

    monkeypatch.setattr(queue, "publish", publish)
    return found


def test_it_is_sent_once_the_transaction_is_there(sent: list[Any], django_capture_on_commit_callbacks: Any) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        queue.publish_on_commit("operations.step", str(ID))
        assert sent == []
    assert sent == [("operations.step", str(ID))]


def test_a_transaction_that_is_rolled_back_sends_nothing(
    sent: list[Any], django_capture_on_commit_callbacks: Any
) -> None:
    with django_capture_on_commit_callbacks(execute=True), pytest.raises(ValueError), transaction.atomic():
        queue.publish_on_commit("operations.step", str(ID))
        raise ValueError
    assert sent == []


def test_an_error_while_sending_does_not_reach_the_caller(
    db: None, monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any
) -> None:
    def fail(task: str, *ids: str) -> bool:
        raise RuntimeError("a bug in the client")

    monkeypatch.setattr(queue, "publish", fail)
    done: list[str] = []
    with django_capture_on_commit_callbacks(execute=True) as callbacks:
        queue.publish_on_commit("operations.step", str(ID))
        done.append("committed")
    assert (len(callbacks), done) == (1, ["committed"])
    assert sys.exc_info() == (None, None, None)
