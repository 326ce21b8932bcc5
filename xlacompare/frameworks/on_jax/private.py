"""What JAX does not offer in public: one function each. Tried with jax 0.10.2."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from typing import Any

import jax
import jaxlib._jax as _jax
from jax._src import config, distributed, xla_bridge


def bind_gloo(hostname: str | None, interface: str | None) -> None:
    """Makes gloo listen on, and announce, an address of our choice. After jax.distributed.initialize, before the first
    use of a device.

    JAX passes neither argument, so that gloo takes what the machine's own host name resolves to: an address that the
    others may not reach, or another network than the one that is to be measured.

    Args:
      hostname: Address of this process, or None.
      interface: Network interface, or None; one of the two.
    """
    collectives = _jax.make_gloo_tcp_collectives(
        distributed_client=distributed.global_state.client, hostname=hostname, interface=interface
    )
    xla_bridge.register_backend_factory(
        "cpu",
        functools.partial(xla_bridge.make_cpu_client, collectives=collectives),
        priority=0,
        fail_quietly=False,
    )


def register_plugin(name: str, path: str, options: Mapping[str, Any]) -> None:
    """Makes a PJRT plugin a platform that JAX_PLATFORMS can name. Before the first use of a device.

    JAX's public ways are an entry point of an installed package, or a variable that takes no options.

    Args:
      name: Of the platform.
      path: The plugin's library.
      options: Of its client.
    """
    xla_bridge.register_plugin(name, library_path=path, options=dict(options))


def without_disk_cache() -> AbstractContextManager[Any]:
    """A scope whose compilations really happen: the key of the disk cache leaves out --xla_dump_to, and a program that
    comes from there leaves no kernels in the dump. Setting the public jax_enable_compilation_cache is for good.
    """
    scope: AbstractContextManager[Any] = config.enable_compilation_cache(False)
    return scope


def live_programs(wanted: Collection[str]) -> list[str]:
    """Optimised HLO of the compiled programs of these names that this process holds; several may have one name.

    JAX offers the text of a program to whoever compiled it alone. `live_executables` is a method of the PJRT client.

    Args:
      wanted: Names of modules ("jit_step").
    """
    modules = [module for one in jax.devices()[0].client.live_executables() for module in one.hlo_modules()]
    return [module.to_string() for module in modules if module.name in wanted]
