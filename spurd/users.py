"""Who a user is on this node: a launch needs an account here, whatever the controller was told."""

from __future__ import annotations

import os
import pwd

from spurd.environment import Account


class UnknownUser(Exception):
    """The uid has no account here; one line for the job's record."""


def look_up(uid: int, gid: int, name: str, node: str) -> Account:
    """The account of `uid`, with primary group `gid` and all its groups. Blocks on the name service.

    UnknownUser: there is none here, or it is called otherwise than where the job was submitted.
    """
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        raise UnknownUser(f"uid {uid} ({name}) has no account on node {node}") from None
    if name and entry.pw_name != name:
        raise UnknownUser(f"uid {uid} is {entry.pw_name} on node {node}, not {name}")
    groups = os.getgrouplist(entry.pw_name, gid)
    return Account(entry.pw_name, uid, gid, entry.pw_dir or "/", entry.pw_shell or "/bin/sh", tuple(groups))
