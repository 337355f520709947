"""What `ps` shows of us, and the prctl(2) switches of launcher and supervisor. The one user of python-prctl."""

from __future__ import annotations

import prctl


def set_title(text: str) -> None:
    """Show `text` as the command line and its first word as the name of this process."""
    prctl.set_name(text.partition(":")[0])
    prctl.set_proctitle(text)


def become_subreaper() -> None:
    """Orphans among our descendants become our children: PR_SET_CHILD_SUBREAPER. Not inherited by a fork."""
    prctl.set_child_subreaper(1)
