"""A site's own code at the points of a run where SPANK has its hooks: Python entry points of the group `spur.plugins`.

An entry point gives an object with any of these methods; each runs in a child of the supervisor, never in it, with the
environment it may change:

    prolog(environment)      as root, before the site's prolog         failure: as a prolog that failed
    epilog(environment)      as root, before the site's epilog         failure: as an epilog that failed
    task_init(environment)   as root, in the task before its identity  failure: the task does not start
    user_init(environment)   as the user, just before the exec         failure: the task does not start

They are imported once, by the launcher; what they need they must import at the top of their module, since nothing can
be imported after that.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass

from spurstepd.ledger import Duty


@dataclass(frozen=True, slots=True)
class Plugins:
    """The objects, in the order in which the site named them."""

    loaded: tuple[tuple[str, object], ...] = ()

    def around_run(self, duty: Duty, environment: MutableMapping[str, str]) -> None:
        self.call(duty.value, environment)

    def call(self, method: str, environment: MutableMapping[str, str]) -> None:
        for _name, plugin in self.loaded:
            function = getattr(plugin, method, None)
            if function is not None:
                function(environment)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.loaded)


class UnknownPlugin(Exception):
    """A name that the configuration gives and no installed package has."""


def load(names: Sequence[str]) -> Plugins:
    """Import the plugins called `names`. UnknownPlugin names one that is not installed."""
    if not names:
        return Plugins()
    from importlib.metadata import entry_points  # 10 ms and 1 MiB that a site without plugins need not pay

    found = {one.name: one for one in entry_points(group="spur.plugins")}
    for name in names:
        if name not in found:
            raise UnknownPlugin(f"plugin {name!r} is not installed (known: {', '.join(sorted(found)) or 'none'})")
    return Plugins(tuple((name, found[name].load()) for name in names))
