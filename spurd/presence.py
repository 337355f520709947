"""This node in the controller's eyes: registered once per start, then a heartbeat as often as the controller wants.

Each carries the complete list of runs. It goes on for as long as the agent lives, whatever becomes of the controller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from spur import __version__
from spur.gres import Gres
from spur.pb import common_pb2, spurctld_pb2
from spurd import gpus, inventory
from spurd.claims import Inventory
from spurd.controller import CALL_TIMEOUT_S, Controller, Pause, Unanswered
from spurd.drains import Drains
from spurd.inventory import InventoryError, Machine
from spurd.roster import Roster
from spurstepd.ledger import Device

_LEAST_TIMEOUT_S = 2.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Node:
    """What does not change while this agent lives."""

    name: str
    hostname: str
    address: str  # where the controller reaches us
    boot_id: str
    incarnation: str
    started_at: float
    machine: Machine
    inventory: Inventory
    declared_cpus: int | None
    devices: tuple[Device, ...]


class Presence:
    """Owns the registration. `on_registered` is called whenever the controller has taken us in."""

    def __init__(
        self,
        node: Node,
        controller: Controller,
        roster: Roster,
        drains: Drains,
        interval_s: float,
        on_registered: Callable[[], None],
    ) -> None:
        self._node = node
        self._controller = controller
        self._roster = roster
        self._drains = drains
        self._interval_s = interval_s
        self._on_registered = on_registered

    async def keep_up(self) -> None:
        """For as long as this is awaited."""
        while True:
            await self._register()
            while await self._beat():
                pass

    async def _register(self) -> None:
        """Until the controller has taken us in."""
        pause = Pause()
        while True:
            told = self._drains.standing()
            try:
                reply = await self._controller.register(self._registration(told))
                break
            except Unanswered as error:
                log.warning("registration_not_answered", reason=str(error))
                await self._controller.wait_answered(pause.next_s())
        if reply.heartbeat_interval_s > 0:
            self._interval_s = reply.heartbeat_interval_s
        log.info("registered", cluster=reply.cluster_name, interval_s=self._interval_s, runs=len(self._roster))
        self._on_registered()

    async def _beat(self) -> bool:
        """One heartbeat and the pause before it; False where the controller wants us to register again."""
        await asyncio.sleep(self._interval_s)
        self._look_at_devices()
        told = self._drains.standing()
        try:
            reply = await self._controller.heartbeat(self._heartbeat(told), self._timeout_s)
        except Unanswered as error:
            log.debug("heartbeat_not_answered", reason=str(error))
            return True
        if reply.drain_noted:
            self._roster.drains_noted(self._drains.noted(told))
        if reply.register_again:
            log.info("registration_wanted")
        return not reply.register_again

    @property
    def _timeout_s(self) -> float:
        """A heartbeat that hangs must not keep the next one from being sent for long."""
        return min(max(self._interval_s, _LEAST_TIMEOUT_S), CALL_TIMEOUT_S)

    def _look_at_devices(self) -> None:
        """A device that vanishes drains the node until it is back."""
        absent = gpus.absent_files(self._node.devices)
        found = [str(one) for one in gpus.vanished(absent, self._roster.claims.held)]
        reasons = {f"device {text}": text for text in found}
        for source in self._drains.standing():
            if source.startswith("device ") and source not in reasons:
                self._drains.owe(source, None)
        for source, text in reasons.items():
            self._drains.owe(source, text)

    def _registration(self, told: dict[str, str]) -> spurctld_pb2.RegisterRequest:
        node, machine = self._node, self._node.machine
        shape = inventory.shape(machine.cpus, node.declared_cpus)
        return spurctld_pb2.RegisterRequest(
            node=node.name,
            hostname=node.hostname,
            address=node.address,
            version=__version__,
            boot_id=node.boot_id,
            incarnation=node.incarnation,
            arch=machine.arch,
            os=machine.os,
            cpus=len(node.inventory.cpus),
            memory_mb=node.inventory.memory_mb,
            gres=[common_pb2.GresCount(name=one.name, type=one.type, count=one.count) for one in _amounts(node)],
            runs=self._roster.statuses(complete=True),
            boot_at=machine.boot_at,
            started_at=node.started_at,
            drain_reasons=told.values(),
            sockets=shape.sockets,
            cores_per_socket=shape.cores_per_socket,
            threads_per_core=shape.threads_per_core,
            tmp_disk_mb=machine.tmp_disk_mb,
            real_cpus=node.declared_cpus is None,
        )

    def _heartbeat(self, told: dict[str, str]) -> spurctld_pb2.HeartbeatRequest:
        request = spurctld_pb2.HeartbeatRequest(
            node=self._node.name,
            incarnation=self._node.incarnation,
            runs=self._roster.statuses(complete=False),
            drain_reasons=told.values(),
        )
        try:
            pulse = inventory.pulse()
        except InventoryError as error:
            log.warning("pulse_not_taken", reason=str(error))
        else:
            request.load, request.free_memory_mb = pulse.load, pulse.free_memory_mb
        return request


def _amounts(node: Node) -> list[Gres]:
    counts: dict[tuple[str, str], int] = {}
    for device in node.inventory.gpus:
        counts[device.name, device.type] = counts.get((device.name, device.type), 0) + 1
    return [Gres(name, kind, count) for (name, kind), count in sorted(counts.items())]
