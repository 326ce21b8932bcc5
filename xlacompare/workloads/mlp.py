"""Multilayer perceptron on handwritten digits."""

from __future__ import annotations

import dataclasses
from typing import Any

from xlacompare import workloads
from xlacompare.core import products
from xlacompare.workloads import data, spec, tape, tape_node
from xlacompare.workloads import products as made


@dataclasses.dataclass(frozen=True)
class MlpConfig:
    """Sizes of the layers."""

    in_features: int = 64
    hidden: tuple[int, ...] = (512, 512)
    classes: int = 10


PRESETS: dict[str, tuple[MlpConfig, int]] = {
    "tiny": (MlpConfig(), 128),
    "small": (MlpConfig(hidden=(2048, 2048)), 256),
    "base": (MlpConfig(hidden=(4096,) * 4), 512),
}


@dataclasses.dataclass(frozen=True)
class Mlp:
    """See `spec.Workload`. Inputs [batch, 64], labels [batch]."""

    preset: str
    config: MlpConfig
    optimizer: spec.OptimizerSpec
    batch_size: int
    synthetic: bool = False
    name: str = "mlp"

    def _layers(self) -> list[tuple[str, int, int]]:
        sizes = (self.config.in_features, *self.config.hidden, self.config.classes)
        names = [*(f"layer{i}" for i in range(len(self.config.hidden))), "head"]
        return list(zip(names, sizes[:-1], sizes[1:], strict=True))

    def parameters(self) -> tuple[spec.TensorSpec, ...]:
        """Kernel and bias of each layer."""
        return tuple(
            tensor
            for name, fan_in, fan_out in self._layers()
            for tensor in (
                spec.TensorSpec(f"{name}.kernel", (fan_in, fan_out), "dense"),
                spec.TensorSpec(f"{name}.bias", (fan_out,), "vector"),
            )
        )

    def buffers(self) -> tuple[spec.TensorSpec, ...]:
        """None."""
        return ()

    def activation_names(self) -> tuple[str, ...]:
        """Each hidden layer after its relu, then the logits."""
        return (*(f"layer{i}" for i in range(len(self.config.hidden))), "logits")

    def initial_parameters(self, seed: int) -> spec.Arrays:
        """He initialisation."""
        return data.initial_values(self.parameters(), seed)

    def initial_buffers(self) -> spec.Arrays:
        """None."""
        return {}

    def batches(self, seed: int, count: int) -> list[spec.Arrays]:
        """Standardised digits, flat."""
        drawn = data.draw_digits(seed, self.batch_size, count)
        return [{**batch, "inputs": batch["inputs"].reshape(self.batch_size, -1)} for batch in drawn]

    def forward(
        self, tape: tape.Tape, parameters: dict[str, tape_node.Node], buffers: spec.Arrays, batch: spec.Arrays
    ) -> tuple[tape_node.Node, spec.Arrays, dict[str, Any]]:
        """See `spec.Workload`."""
        taps = {}
        x = tape.narrow(tape.constant(batch["inputs"]))
        for i in range(len(self.config.hidden)):
            x = tape.relu(tape.dense(x, parameters[f"layer{i}.kernel"], parameters[f"layer{i}.bias"]))
            taps[f"layer{i}"] = x
        taps["logits"] = tape.dense(x, parameters["head.kernel"], parameters["head.bias"])
        return tape.cross_entropy(taps["logits"], batch["labels"]), {}, taps

    def flops_per_step(self) -> int:
        """3 (forward and backward) * 2 * batch * sum(in * out)."""
        return 6 * self.batch_size * sum(fan_in * fan_out for _, fan_in, fan_out in self._layers())

    def products_per_step(self) -> list[products.Product]:
        """See `spec.Workload`."""
        return [
            product
            for i, (name, fan_in, fan_out) in enumerate(self._layers())
            for product in made.dense(name, self.batch_size, fan_in, fan_out, first=i == 0)
        ]

    def bytes_per_step(self, dtype: str) -> int:
        """Parameters, optimizer state, and the output of every matrix product."""
        outputs = self.batch_size * sum(fan_out for _, _, fan_out in self._layers())
        return data.state_bytes(self.parameters(), self.optimizer, dtype) + data.activation_bytes(outputs, dtype)


def make(preset: str) -> Mlp:
    """The workload of a preset."""
    config, batch_size = PRESETS[preset]
    return Mlp(preset, config, workloads.OPTIMIZERS["sgd"], batch_size)
