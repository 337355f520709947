"""Build hook: turns proto/ into what the packages import.

`spur/pb/*_pb2*.py` comes from the protobuf contracts and `spurstepd/*.varlink` from the varlink ones.
Both are built, never committed; an editable install builds them into the checkout.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MARK = '"""Generated from proto/ at build time; do not edit."""\n'


def generate(root: Path) -> None:
    """Write the generated code of every contract of `root`/proto below `root`."""
    from grpc_tools import protoc

    out = root / "spur" / "pb"
    out.mkdir(exist_ok=True)
    protos = sorted(str(path) for path in (root / "proto").glob("*.proto"))
    names = [f"spur/pb/{Path(path).name}" for path in protos]
    arguments = [f"-Ispur/pb={root / 'proto'}"]
    arguments += [f"--{kind}_out={root}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
    tools = Path(sys.executable).parent
    for plugin in ("mypy", "mypy_grpc"):
        program = tools / f"protoc-gen-{plugin}"
        found = program if program.exists() else shutil.which(program.name)
        arguments.append(f"--plugin=protoc-gen-{plugin}={found}")
    if protoc.main(["protoc", *arguments, *names]) != 0:
        raise RuntimeError("protoc refused proto/, see above")
    (out / "__init__.py").write_text(MARK)
    for contract in (root / "proto").glob("*.varlink"):
        shutil.copy(contract, root / "spurstepd" / contract.name)


class ContractsHook(BuildHookInterface):  # type: ignore[type-arg]
    """Runs `generate` before a wheel or an editable install is built."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        generate(Path(self.root))
