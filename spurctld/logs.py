"""The log of the controller: one event per line on stderr, JSON where no person reads it."""

from __future__ import annotations

import logging
import sys

import structlog

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def set_up(level: str) -> None:
    """Send events of at least `level` to stderr. KeyError: there is no such level."""
    person = sys.stderr.isatty()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info if person else structlog.processors.dict_tracebacks,
            structlog.dev.ConsoleRenderer() if person else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format='{"event": "library_said", "text": "%(message)s"}'
    )
