"""Captured programs, of whatever framework, in torch_xla's XLA and client. Private names of torch_xla 2.9.0 are here.

The program becomes one node of a lazy graph, which is compiled as any other and found again by its hash: a run then
costs no tracing. `_run_stablehlo` would take the bytecode as it is, but its second call never returns (2.9.0).
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np
import torch
import torch_xla
from torch_xla.core import xla_builder

from xlacompare.core import errors, plugin, program
from xlacompare.frameworks.on_torch_xla import compiler

# Fingerprint -> (hash of the compiled graph, which input stands where in it): a process compiles a program once. Left
# to itself torch_xla compiles an equal computation again.
_COMPILED: dict[str, tuple[Any, list[int]]] = {}


@dataclasses.dataclass
class Replay:
    """A `graph.runnable.Runnable`; nothing is donated."""

    client: str
    compile_s: float
    _graph: Any
    _inputs: list[torch.Tensor]
    _last: list[torch.Tensor] = dataclasses.field(default_factory=list)

    def dispatch(self) -> None:
        """Starts one run on the same inputs."""
        self._last = torch_xla._XLAC._run_cached_graph(self._graph, self._inputs)

    def synchronize(self) -> None:
        """Waits until the device is idle."""
        compiler.wait()

    def results(self) -> list[np.ndarray]:
        """Outputs of the last run."""
        return [item.cpu().numpy() for item in self._last]

    def close(self) -> None:
        """Frees the arrays; torch_xla keeps compiled programs in its cache."""
        compiler.wait()
        self._inputs, self._last = [], []


def prepare(captured: program.Program, computation: bytes) -> Replay:
    """Compiles a program and places its inputs.

    Args:
      captured: The program; only its inputs are taken from here.
      computation: The program as a serialised HLO module.

    Raises:
      UnsupportedError: torch_xla's XLA is older than what wrote the module and does not take it.
    """
    device, client = torch_xla.device(), plugin.client_name(f"torch_xla {torch_xla.__version__}")
    inputs = [torch.from_numpy(np.array(array)).to(device) for array in captured.arguments]
    compiler.fence()
    begin, key = time.perf_counter(), captured.fingerprint
    try:
        if key not in _COMPILED:
            _COMPILED[key] = _compiled(f"{captured.framework}_{key}", inputs, computation)
    except RuntimeError as error:
        line = str(error).splitlines()[0][:200]
        raise errors.UnsupportedError(f"{captured.framework}'s program does not compile in {client}: {line}") from None
    compile_s = time.perf_counter() - begin
    graph, order = _COMPILED[key]
    return Replay(client, compile_s, graph, [inputs[place] for place in order])


def _compiled(name: str, inputs: list[torch.Tensor], computation: bytes) -> tuple[Any, list[int]]:
    """Hash of the compiled graph, and which input stands where in it.

    The graph is never launched: what is pending is dropped, as torch_xla's Dynamo bridge does it.
    """
    made = xla_builder.computation_from_module_proto(name, computation)
    results = torch_xla._XLAC._xla_user_computation(f"xla::{name}", inputs, made)
    graph = torch_xla._XLAC._get_graph_hash(results)
    taken, _ = torch_xla._XLAC._get_tensors_xla_device_data_node(results)
    torch_xla._XLAC._xla_warm_up_cache(results, [])
    torch_xla._XLAC._clear_pending_irs(str(torch_xla.device()))
    known = {int(torch_xla._XLAC._xla_get_tensor_id(tensor)): place for place, tensor in enumerate(inputs)}
    return graph, [known[identity] for identity in taken]
