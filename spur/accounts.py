"""Users and groups of this machine by name or number, as the commands' options name them."""

from __future__ import annotations

import os
import pwd

from spur.numerals import number


def uid_of(text: str) -> int | None:
    """The uid of the user `text`, a name or the number of a user that there is; None: nobody is called so."""
    try:
        return pwd.getpwnam(text).pw_uid
    except (KeyError, ValueError):
        pass
    uid = number(text)
    try:
        return None if uid is None else pwd.getpwuid(uid).pw_uid
    except KeyError:
        return None


def own_name() -> str:
    """The caller's name, or the uid where there is no account for it."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
