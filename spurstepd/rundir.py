"""Where the records of a run stand.

    state_dir/                       0711 root
    ├── node.json                    identity of the node, written by spurd
    ├── spurstepd.log                what launcher and supervisors have to say
    ├── runs/                        0711 root
    │   ├── 42.1/                    0711 root, one per run
    │   │   ├── manifest.json        0600 root  the ledger; written by the holder of `lock` alone
    │   │   ├── launch.json          0600 root  the plan of the launch; never changed
    │   │   ├── exit                 0600 root  one 4 KiB slot, zeros until the exit is known
    │   │   ├── lock                 0600 root  flock held by the living supervisor
    │   │   ├── script               0500 user  the batch script, byte for byte
    │   │   └── witness.json         0600 root  written by whoever reaped the leader of a dead supervisor
    │   └── .43.1.new/               being made by spurd; renamed when complete, removed at a start
    └── quarantine/                  0700 root  what could not be read, moved here

    runtime_dir/
    ├── runs/42.1.sock               0666  the supervisor's socket
    ├── launchers/PID.sock           0600  a launcher's
    └── agent.sock                   0666  spurd's local socket: tokens

A directory that does not start with a dot is complete: spurd makes it under the other name, syncs it and
renames it, so that a crash leaves no run that is half described.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path

from spurstepd.ids import RunId

SLOT_BYTES = 4096


def agent_key(state_dir: Path, node: str) -> str:
    """What tells the agents of one machine apart, the same after every restart; 8 hexadecimal digits."""
    return f"{zlib.crc32(f'{state_dir.resolve()}/{node}'.encode()):08x}"


@dataclass(frozen=True, slots=True)
class NodeDirs:
    """The two directories of an agent."""

    state: Path
    runtime: Path

    @property
    def runs(self) -> Path:
        return self.state / "runs"

    @property
    def quarantine(self) -> Path:
        return self.state / "quarantine"

    @property
    def log(self) -> Path:
        return self.state / "spurstepd.log"

    @property
    def launchers(self) -> Path:
        return self.runtime / "launchers"

    @property
    def sockets(self) -> Path:
        return self.runtime / "runs"

    def socket(self, run: RunId) -> Path:
        return self.sockets / f"{run}.sock"

    def run(self, run: RunId) -> RunDir:
        return RunDir(self.runs / str(run))


@dataclass(frozen=True, slots=True)
class RunDir:
    """The directory of one run."""

    path: Path

    @property
    def manifest(self) -> Path:
        return self.path / "manifest.json"

    @property
    def plan(self) -> Path:
        return self.path / "launch.json"

    @property
    def slot(self) -> Path:
        return self.path / "exit"

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    @property
    def script(self) -> Path:
        return self.path / "script"

    @property
    def witness(self) -> Path:
        return self.path / "witness.json"
