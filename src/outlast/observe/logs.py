"""Events as lines of Python's logging, for whoever has set that up: one sentence each."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from outlast.observe.sentences import level, sentence
from outlast.observe.written import Written


class LogSink:
    """`LogSink(logging.getLogger("outlast"))`. Levels that nobody listens to cost no more than a look."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log

    def __repr__(self) -> str:
        return f"the log {self._log.name}"

    def write(self, batch: Sequence[Written]) -> None:
        for one in batch:
            if one.dropped:
                self._log.warning("%d events are left out here", one.dropped)
            if self._log.isEnabledFor(how := level(one.event)):
                self._log.log(how, "%s", sentence(one.event))

    def close(self) -> None:
        pass
