"""Joins this process to the others through jax.distributed."""

from __future__ import annotations

import ipaddress
import math
import os
import socket

import jax

from xlacompare.core import errors
from xlacompare.frameworks import ranks
from xlacompare.frameworks.on_jax import private


def join(place: ranks.Place) -> list[jax.Device]:
    """Joins, and returns one device per rank in the order of ranks.

    Raises:
      UnsupportedError: The processes do not have one device each.
    """
    deadline_s = max(1, math.ceil(place.deadline_s))
    coordinator = f"[{place.address}]:{place.port}" if ":" in place.address else f"{place.address}:{place.port}"
    jax.distributed.initialize(
        coordinator,
        num_processes=place.size,
        process_id=place.rank,
        local_device_ids=[place.local_rank if place.platform == "gpu" else 0],
        initialization_timeout=deadline_s,
        # Below 10 s a busy machine is taken for a dead one.
        heartbeat_timeout_seconds=max(10, deadline_s),
        shutdown_timeout_seconds=deadline_s,
        # By default the coordinator listens on every network of the machine.
        coordinator_bind_address=coordinator if _is_loopback(place.address) else None,
    )
    if place.platform == "cpu":
        interface = os.environ.get("GLOO_SOCKET_IFNAME")  # torch's variable: both then use the same network
        private.bind_gloo(None if interface else own_address(place.address, place.port), interface)
    devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    if len(devices) != place.size:
        raise errors.UnsupportedError(f"{place.size} processes have {len(devices)} devices: one each is needed")
    return devices


def own_address(address: str, port: int) -> str:
    """Address of this machine on the network that leads to `address` (nothing is sent)."""
    family, kind, _, _, target = socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
