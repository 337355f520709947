"""What a raw wait status says, wait(2)."""

from __future__ import annotations

import os
import signal


def from_waitid(result: os.waitid_result) -> int:
    """The raw status that waitpid would have given for what waitid(2) told."""
    if result.si_code == os.CLD_EXITED:
        return result.si_status << 8
    return int(result.si_status) | (0x80 if result.si_code == os.CLD_DUMPED else 0)


def exit_code(status: int) -> int:
    """The code of an exit, 0 for a death by signal."""
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 0


def exit_signal(status: int) -> int:
    """The signal of a death by signal, 0 for an exit."""
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def dumped_core(status: int) -> bool:
    return os.WIFSIGNALED(status) and os.WCOREDUMP(status)


def pair(status: int) -> str:
    """`code:signal`, as Slurm shows it."""
    return f"{exit_code(status)}:{exit_signal(status)}"


def sentence(status: int) -> str:
    """For a person: "exited with code 7", "was killed by SIGTERM"."""
    if os.WIFEXITED(status):
        return f"exited with code {os.WEXITSTATUS(status)}"
    try:
        name = signal.Signals(exit_signal(status)).name
    except ValueError:  # a real-time signal
        name = f"signal {exit_signal(status)}"
    return f"was killed by {name}" + (" and dumped core" if dumped_core(status) else "")
