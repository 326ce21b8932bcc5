"""Training over the stand-in's ranks: NumPy on each rank's rows, gradients averaged through rank 0.

STANDIN_STEP_FAULT="RANK:FAULT:COMMUNICATION:COMPILER" plants a fault in the steps of one arm, in the process of rank
RANK; several are separated by commas: sum (instead of the mean), wrong (a gradient), nan (losses), talks (elided
communicates), bytes (the arm moves other bytes than it must), lost (an operand is missing), product (other work), die
and stop (in visit WHEN), unsupported (when built), compile (each step).
STANDIN_WHOLE_BATCH=1: every rank does all of the batch.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np

from xlacompare.core import census, errors
from xlacompare.frameworks import interface
from xlacompare.parallel import arms, request, shards
from xlacompare.workloads import optimizers, oracle, spec, tape

WHEN = 4


def build(
    ranks: Any,
    workload: spec.Workload,
    parameters: spec.Arrays,
    buffers: spec.Arrays,
    batches: list[spec.Arrays],
    asked: request.Request,
) -> Step | Alone:
    """See `xlacompare.frameworks.strategy`."""
    ranks.compiles += 1
    if asked.communication in arms.WITHOUT_COMPUTE:
        return Alone(ranks, asked)
    return Step(ranks, workload, parameters, buffers, batches, asked)


def _fault(ranks: Any, asked: request.Request) -> str:
    for item in filter(None, os.environ.get("STANDIN_STEP_FAULT", "").split(",")):
        rank, fault, communication, compiler = item.split(":")
        if int(rank) in ranks.local and (communication, compiler) == (asked.communication, asked.compiler):
            return fault
    return ""


def _operation(nbytes: int, operands: int) -> dict[str, Any]:
    return census.LoweredCollective("all-reduce", "f32", nbytes, nbytes, operands, reduction="sum").to_dict()


class Alone:
    """Bytes and nothing else."""

    compile_times = interface.CompileTimes(note="nothing is compiled")

    def __init__(self, ranks: Any, asked: request.Request) -> None:
        least = asked.communication == "alone_token"
        sizes = [4 * item.operands if least else item.operand_bytes for item in asked.schedule]
        self._ranks, self._ops = ranks, [_operation(n, i.operands) for n, i in zip(sizes, asked.schedule, strict=True)]
        self._sizes = sizes

    def run(self, index: int) -> None:
        for size in self._sizes:
            self._ranks.net.all_inputs(b"." * size * len(self._ranks.local))

    def synchronize(self) -> None:
        """Everything is done already."""

    def communications(self) -> dict[str, Any]:
        return {"source": "c10d", "ops": self._ops}

    def close(self) -> None:
        """Nothing is held."""


class Step:
    """One training step on the tape, by every rank of this process in turn."""

    def __init__(self, ranks, workload, parameters, buffers, batches, asked) -> None:
        self._ranks, self._workload, self._asked, self._batches = ranks, workload, asked, batches
        self._initial, self._fault = (parameters, buffers), _fault(ranks, asked)
        self._resets = 0  # by the build, the gate, the warm-up, then one for each visit
        self.compile_times = interface.CompileTimes(note="nothing is compiled")
        if self._fault == "unsupported":
            raise errors.UnsupportedError("planted: only one rank cannot build it")
        self.reset()

    def reset(self) -> None:
        self._resets += 1
        wide = tape.Tape(self._asked.dtype).wide
        self._parameters, self._buffers = ({k: np.asarray(v, wide) for k, v in side.items()} for side in self._initial)
        self._moments = optimizers.initial_state(self._workload.optimizer, self._parameters)
        self._count, self._losses = 0, [float("nan")]

    def run(self, index: int) -> None:
        if self._resets == 3 + WHEN and self._fault in ("die", "stop"):
            os.kill(os.getpid(), {"die": signal.SIGKILL, "stop": signal.SIGSTOP}[self._fault])
        self._ranks.compiles += self._fault == "compile"
        self._losses, self._buffers, gradients = self._gradients(self._parameters, index)
        self._parameters, self._moments = optimizers.update(
            self._workload.optimizer, self._count, self._parameters, gradients, self._moments
        )
        self._count += 1

    def _gradients(self, parameters: spec.Arrays, index: int) -> tuple[list[float], spec.Arrays, spec.Arrays]:
        n = self._asked.num_ranks
        batch, found, losses, buffers = self._batches[index % len(self._batches)], [], [], {}
        for rank in self._ranks.local:
            whole = os.environ.get("STANDIN_WHOLE_BATCH")
            rows = batch if whole else shards.rows(batch, rank, n)
            made = tape.Tape(self._asked.dtype)
            loss, buffers, _, gradients = oracle.run_step(self._workload, made, parameters, self._buffers, rows)
            losses.append(float(loss))
            found.append(np.concatenate([gradients[name].ravel() for name in sorted(gradients)]))
        flat = self._exchanged(found) / (1 if self._fault == "sum" else n)
        if self._fault == "wrong":
            flat = flat.copy()
            flat[3] += 1.0
        sizes = np.cumsum([parameters[name].size for name in sorted(parameters)])[:-1]
        parts = dict(zip(sorted(parameters), np.split(flat, sizes), strict=True))
        return losses, buffers, {name: part.reshape(parameters[name].shape) for name, part in parts.items()}

    def _exchanged(self, found: list[np.ndarray]) -> np.ndarray:
        """Sum over all ranks, as the arm has it."""
        if self._asked.communication in ("real", "serial"):
            parts = self._ranks.net.all_inputs(b"".join(part.tobytes() for part in found))
            return np.sum([np.frombuffer(part, found[0].dtype) for part in parts], axis=0)
        if self._asked.communication == "token":
            self._ranks.net.all_inputs(b"".join(part[:1].tobytes() for part in found))
        return found[0]

    def synchronize(self) -> None:
        """Everything is done already."""

    def loss(self) -> float:
        parts = self._ranks.net.all_inputs(np.asarray(self._losses).tobytes())
        return float("nan") if self._fault == "nan" else float(np.mean([np.frombuffer(part) for part in parts]))

    def state(self) -> tuple[spec.Arrays, spec.Arrays]:
        return {k: np.array(v) for k, v in self._parameters.items()}, {k: np.array(v) for k, v in self._buffers.items()}

    def gradients(self) -> spec.Arrays:
        parameters = {k: np.asarray(v, tape.Tape(self._asked.dtype).wide) for k, v in self._initial[0].items()}
        return {k: np.asarray(v, np.float64) for k, v in self._gradients(parameters, 0)[2].items()}

    def communications(self) -> dict[str, Any]:
        sizes = [4 * parameter.size for parameter in self._parameters.values()]
        sizes = sizes[1:] if self._fault == "lost" else sizes
        nbytes = 4 * len(sizes) if self._asked.communication == "token" else sum(sizes)
        nbytes += 400 * (self._fault == "bytes")
        talks = self._asked.communication != "elided" or self._fault == "talks"
        return {"source": "c10d", "ops": [_operation(nbytes, len(sizes))] if talks else []}

    def work(self) -> census.Counted:
        """By the workload's formula, whose FLOPs are proportional to the rows; all ranks meet, as others' do."""
        self._ranks.barrier()
        share = 1 if os.environ.get("STANDIN_WHOLE_BATCH") else self._asked.num_ranks
        flops = sum(product.flops for product in self._workload.products_per_step()) // share
        more = 2 if self._fault == "product" else 1
        heavy = {
            "opcode": "dot", "form": (1, flops), "shapes": "[all]", "dtype": "f32", "count": more,
            "flops": more * flops, "precision": "", "promoted_from": "", "layers": [],
        }  # fmt: skip
        counted = census.Census(1, {"dot": more}, more * flops, 0, [heavy], {}, [], {}, [], {}, 0)
        return census.Counted("the workload's formula", counted)

    def close(self) -> None:
        self._batches = []
