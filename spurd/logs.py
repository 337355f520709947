"""The log of the agent: one event per line on stderr, JSON where no person reads it."""

from __future__ import annotations

import logging
import sys

import structlog

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def set_up(level: str, node: str) -> None:
    """Send events of at least `level` to stderr, each with the node's name. KeyError: there is no such level."""
    person = sys.stderr.isatty()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.dict_tracebacks if not person else structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer() if person else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.bind_contextvars(node=node)
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format='{"event": "library_said", "text": "%(message)s"}'
    )
