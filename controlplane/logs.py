"""Structured logs: one JSON object a line, with request, task and operation ids; secrets never reach a logger."""

from __future__ import annotations

from typing import Any

import structlog
from structlog.typing import Processor

SHARED: list[Processor] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.StackInfoRenderer(),
    structlog.processors.format_exc_info,
]


def logging_config(*, level: str, json: bool) -> dict[str, Any]:
    """The LOGGING setting; also configures structlog, so that both kinds of logger print the same shape."""
    structlog.configure(
        processors=[*SHARED, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    renderer = structlog.processors.JSONRenderer() if json else structlog.dev.ConsoleRenderer(colors=False)
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "structured": {
                "()": structlog.stdlib.ProcessorFormatter,
                "processor": renderer,
                "foreign_pre_chain": SHARED,
            }
        },
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "structured"}},
        # One line for each message of the queue would bury the rest: sweeps run all the time.
        "loggers": {
            name: {"level": "WARNING"}
            for name in ("django_structlog.celery", "celery.app.trace", "celery.worker.strategy", "celery.beat")
        }
        # Its DEBUG lines hold the paths that are called, in which receivers of webhooks put secrets.
        | {"urllib3": {"level": "INFO"}},
        "root": {"handlers": ["stderr"], "level": level},
    }
