"""The child process: loads one framework, builds cells, runs blocks, as the parent asks.

`python -m xlacompare.launch.worker FD`. What a request raises beyond the errors with a name ends the process with a
traceback in its log, and the parent calls it a crash: nothing is swallowed here.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import pathlib
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from xlacompare import frameworks
from xlacompare.core import cell as cells
from xlacompare.core import errors
from xlacompare.frameworks import gate, interface
from xlacompare.graph import program_file
from xlacompare.launch import bench, planted, protocol, replay_bench
from xlacompare.workloads import archive, load_workload, reference_file, tolerances

PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Session:
    """The state of a worker: its framework and the cells that are built."""

    def __init__(self) -> None:
        self.framework: interface.Framework | None = None
        self.benches: dict[str, bench.Bench | replay_bench.ReplayBench] = {}

    @property
    def loaded(self) -> interface.Framework:
        """The framework, once started."""
        if self.framework is None:
            raise errors.BadInputError("the worker was asked before `start`")
        return self.framework

    def start(self, request: dict[str, Any]) -> dict[str, Any]:
        """Imports the framework's packages, pins to the cores, starts the runtime."""
        name = request["framework"]
        frameworks.require(name)
        begin = time.perf_counter()
        for package in frameworks.entry(name).requires:
            importlib.import_module(package)
        imported = time.perf_counter()
        if request["cores"] is not None:
            os.sched_setaffinity(0, request["cores"])  # before thread pools are made: they size themselves by it
        self.framework = frameworks.load_framework(name)
        started = time.perf_counter()
        return {
            "describe": self.framework.describe(),
            "pid": os.getpid(),
            "import_s": imported - begin,
            "start_s": started - imported,
            "affinity": sorted(os.sched_getaffinity(0)),
        }

    def gate(self, request: dict[str, Any]) -> dict[str, Any]:
        """The float64 gate of one workload."""
        workload = _workload(cells.Cell.from_dict(request["cell"]))
        inputs = archive.load(pathlib.Path(request["archive"]))
        exact = reference_file.load(pathlib.Path(request["reference"])).oracle
        made = (inputs.parameters, inputs.buffers, inputs.batches)
        result = gate.exact_gate(self.loaded, workload, *made, exact, request["arm"], request["steps"])
        return result.to_dict()

    def build(self, request: dict[str, Any]) -> dict[str, Any]:
        """Builds a cell, checks its values, warms it up, sizes its blocks."""
        cell = cells.Cell.from_dict(request["cell"])
        made, answer = bench.build(
            self.loaded,
            _workload(cell),
            cell,
            archive.load(pathlib.Path(request["archive"])),
            reference_file.load(pathlib.Path(request["reference"])),
            request["min_block_s"],
            request["fence"],
        )
        self.benches[cell.id] = made
        return answer

    def replay(self, request: dict[str, Any]) -> dict[str, Any]:
        """Builds a replay: a captured program in this framework's own XLA."""
        folder, computation = pathlib.Path(request["folder"]), pathlib.Path(request["computation"])
        made, answer = replay_bench.build(self.loaded, folder, computation, request["min_block_s"])
        self.benches[request["cell"]] = made
        return answer

    def size(self, request: dict[str, Any]) -> None:
        """Steps of a block, where the parent knows better than the pilot block."""
        self.benches[request["cell"]].steps_per_block = request["steps_per_block"]

    def visit(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        """Runs blocks in the order given; the first step after a switch is run and untimed."""
        blocks, previous = [], None
        for item in request["blocks"]:
            blocks.append(self.benches[item["cell"]].block(item["mode"], untimed=item["cell"] != previous))
            previous = item["cell"]
        return [{**block.to_dict(), "disturbed": False} for block in blocks]

    def program(self, request: dict[str, Any]) -> dict[str, Any]:
        """Captures the program of a built cell into its own folder below `folder`, its census where it has none."""
        step = self._own_step(request["cell"])
        folder = pathlib.Path(request["folder"]) / program_file.folder_name(request["cell"])
        try:
            captured = frameworks.capture(self.loaded.name, step, request["cell"])
        except errors.UnsupportedError as error:
            counted = frameworks.count(self.loaded.name, step)
            if counted.census is None:
                raise
            program_file.save_census(folder, self.loaded.name, request["cell"], counted, str(error))
            return {"status": "unsupported", "reason": str(error), "folder": str(folder)}
        captured.tolerances = self._tolerances(request)
        program_file.save(captured, folder)
        return {"folder": str(folder), "fingerprint": captured.fingerprint, "notes": list(captured.notes)}

    def _tolerances(self, request: dict[str, Any]) -> dict[str, float]:
        """What the gate allows each output of a built cell's program."""
        made = self.benches[request["cell"]]
        assert isinstance(made, bench.Bench)
        reference = reference_file.load(pathlib.Path(request["reference"]))
        return tolerances.of_outputs(made.workload, made.inputs.parameters, reference)

    def _own_step(self, name: str) -> interface.TrainStep:
        """The adapter's step of a built cell, which is no replay."""
        made = self.benches[name]
        assert isinstance(made, bench.Bench)
        return planted.unwrapped(made.step)

    def count(self, request: dict[str, Any]) -> dict[str, Any]:
        """What a built cell does, counted here, or as a program in `path` for whoever has a parser."""
        counted = frameworks.count(self.loaded.name, self._own_step(request["cell"]))
        if counted.census is None:
            pathlib.Path(request["path"]).write_bytes(counted.bytecode)
        return {
            "source": counted.source,
            "census": None if counted.census is None else counted.census.to_dict(),
            "inputs": [item.to_dict() for item in counted.inputs],
        }

    def finish(self, request: dict[str, Any]) -> dict[str, Any]:
        """Memory, and where asked the cost of building again in this process; then frees the cell."""
        step = self._own_step(request["cell"]) if request["evidence"] else None
        found = None if step is None else frameworks.evidence(self.loaded.name, step)
        made = self.benches.pop(request["cell"])
        answer = made.finish(rebuild=request["rebuild"])
        answer["evidence"] = None if found is None else found.to_dict()
        del made, step
        gc.collect()
        return answer


def _workload(cell: cells.Cell) -> Any:
    return load_workload(cell.workload, cell.preset, cell.batch_size, cell.optimizer)


def serve(channel: protocol.Channel, session: Session) -> None:
    """Answers requests until `exit` or until the parent is gone."""
    operations: dict[str, Callable[[dict[str, Any]], Any]] = {
        "start": session.start,
        "gate": session.gate,
        "build": session.build,
        "replay": session.replay,
        "size": session.size,
        "visit": session.visit,
        "count": session.count,
        "program": session.program,
        "finish": session.finish,
    }
    while True:
        try:
            request = channel.receive()
        except protocol.StreamClosed:
            return
        if request["op"] == "exit":
            sys.stdout.flush()
            os._exit(0)  # nothing is left to save, and a framework's own farewell takes up to ten seconds
        channel.send(_answer(operations[request["op"]], request))


def _answer(operation: Callable[[dict[str, Any]], Any], request: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"ok": operation(request)}
    except errors.UnsupportedError as error:
        return {"error": {"status": "unsupported", "message": str(error)}}
    except bench.GateFailed as error:
        return {"error": {"status": "mismatch", "message": str(error), "details": error.details}}
    except errors.MismatchError as error:
        return {"error": {"status": "mismatch", "message": str(error), "details": {}}}
    except MemoryError as error:
        return {"error": {"status": "out_of_memory", "message": f"out of memory: {error}"}}


def main(argv: list[str]) -> None:
    """Serves on the inherited socket whose file descriptor is the only argument."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # never outlive the parent
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's; it ends its children
    serve(protocol.Channel(socket.socket(fileno=int(argv[1]))), Session())


if __name__ == "__main__":
    main(sys.argv)
