"""Why this node must be drained: each reason is carried in every heartbeat for as long as it stands.

The controller lifts such a drain when the reason is no longer told; what has to last until somebody has looked, a
failed epilog for one, is told in the report of its run as well. In memory: every reason has a place where it outlives
us, the manifest of its run or the fault itself.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class _Reason:
    text: str
    noted: bool = False


class Drains:
    """The reasons by their source: a run, a quarantined record, the launcher, the inventory."""

    def __init__(self) -> None:
        self._reasons: dict[str, _Reason] = {}

    def owe(self, source: str, text: str | None) -> None:
        """`source` wants the node drained because of `text`; None: it does no longer."""
        if text is None:
            self._reasons.pop(source, None)
        elif source not in self._reasons or self._reasons[source].text != text:
            self._reasons[source] = _Reason(text)

    def standing(self) -> dict[str, str]:
        """All of them."""
        return {source: reason.text for source, reason in self._reasons.items()}

    def owed(self) -> dict[str, str]:
        """What the controller does not have yet."""
        return {source: reason.text for source, reason in self._reasons.items() if not reason.noted}

    def noted(self, told: dict[str, str]) -> list[str]:
        """The controller has `told`; the sources for which that is news."""
        news = []
        for source, text in told.items():
            reason = self._reasons.get(source)
            if reason is not None and reason.text == text and not reason.noted:
                reason.noted = True
                news.append(source)
        return news
