"""Residual convolutional network: small on handwritten digits, ResNet-50 on synthetic images.

Shapes of `base` follow He et al. 2016, with the stride of a bottleneck on its 3x3 convolution (as torchvision has it).
Padding is explicit, kernel // 2 on both sides: at stride 2 this differs from "SAME".
"""

from __future__ import annotations

import dataclasses
from typing import Any

from xlacompare import workloads
from xlacompare.core import products
from xlacompare.workloads import data, spec, tape, tape_node
from xlacompare.workloads import products as made

EXPANSION = 4  # of a bottleneck block


@dataclasses.dataclass(frozen=True)
class Stage:
    """Blocks of one width; the first of them has the stride."""

    width: int
    blocks: int
    stride: int


@dataclasses.dataclass(frozen=True)
class ConvnetConfig:
    """Sizes, and the meaning of batch norm: `running = bn_momentum * running + (1 - bn_momentum) * batch`."""

    image_size: int = 8
    in_channels: int = 1
    stem_kernel: int = 3
    stem_width: int = 16
    stem_stride: int = 1
    stem_pool: bool = False
    stages: tuple[Stage, ...] = (Stage(16, 1, 1), Stage(32, 1, 2), Stage(64, 1, 2))
    bottleneck: bool = False
    bn_eps: float = 1e-5
    bn_momentum: float = 0.9
    classes: int = 10


PRESETS: dict[str, tuple[ConvnetConfig, int]] = {
    "tiny": (ConvnetConfig(), 64),
    "small": (ConvnetConfig(stem_width=32, stages=(Stage(32, 2, 1), Stage(64, 2, 2), Stage(128, 2, 2))), 64),
    "base": (
        ConvnetConfig(
            image_size=224,
            in_channels=3,
            stem_kernel=7,
            stem_width=64,
            stem_stride=2,
            stem_pool=True,
            stages=(Stage(64, 3, 1), Stage(128, 4, 2), Stage(256, 6, 2), Stage(512, 3, 2)),
            bottleneck=True,
            classes=1000,
        ),
        32,
    ),
}


@dataclasses.dataclass(frozen=True)
class _Unit:
    """A convolution and its batch norm. `size` is the height and width of the output, `size_in` of the input."""

    conv: str
    norm: str
    kernel: int
    stride: int
    fan_in: int
    fan_out: int
    size: int
    size_in: int

    @property
    def window(self) -> products.Window:
        """Along either axis."""
        return products.Window(self.size_in, self.kernel, self.size, self.stride, self.kernel // 2)


@dataclasses.dataclass(frozen=True)
class _Block:
    name: str
    units: tuple[_Unit, ...]
    shortcut: _Unit | None


@dataclasses.dataclass(frozen=True)
class Convnet:
    """See `spec.Workload`. Inputs [batch, height, width, channel], labels [batch]."""

    preset: str
    config: ConvnetConfig
    optimizer: spec.OptimizerSpec
    batch_size: int
    synthetic: bool = False
    name: str = "convnet"

    def _stem(self) -> _Unit:
        config = self.config
        size = _halved(config.image_size, config.stem_stride)
        kernel, stride = config.stem_kernel, config.stem_stride
        features = config.in_channels, config.stem_width
        return _Unit("stem.conv", "stem.bn", kernel, stride, *features, size, config.image_size)

    def _blocks(self) -> list[_Block]:
        stem = self._stem()
        width, size = stem.fan_out, _halved(stem.size, 2 if self.config.stem_pool else 1)
        blocks = []
        for i, stage in enumerate(self.config.stages):
            for j in range(stage.blocks):
                block = _block(
                    f"stage{i}.block{j}", width, stage.width, stage.stride if j == 0 else 1, size, self.config
                )
                width, size = block.units[-1].fan_out, block.units[-1].size
                blocks.append(block)
        return blocks

    def _units(self) -> list[_Unit]:
        units = [self._stem()]
        for block in self._blocks():
            units += [*block.units, *([block.shortcut] if block.shortcut else [])]
        return units

    def parameters(self) -> tuple[spec.TensorSpec, ...]:
        """Kernel, scale and bias of each convolution with its batch norm, then the head."""
        tensors = []
        for unit in self._units():
            shape = (unit.kernel, unit.kernel, unit.fan_in, unit.fan_out)
            tensors.append(spec.TensorSpec(f"{unit.conv}.kernel", shape, "conv"))
            tensors += [spec.TensorSpec(f"{unit.norm}.{last}", (unit.fan_out,), "vector") for last in ("scale", "bias")]
        width, classes = self._units_out(), self.config.classes
        tensors.append(spec.TensorSpec("head.kernel", (width, classes), "dense"))
        tensors.append(spec.TensorSpec("head.bias", (classes,), "vector"))
        return tuple(tensors)

    def _units_out(self) -> int:
        return self._blocks()[-1].units[-1].fan_out

    def buffers(self) -> tuple[spec.TensorSpec, ...]:
        """Running mean and variance of each batch norm."""
        return tuple(
            spec.TensorSpec(f"{unit.norm}.{last}", (unit.fan_out,), "vector")
            for unit in self._units()
            for last in ("mean", "var")
        )

    def activation_names(self) -> tuple[str, ...]:
        """The stem (before its pool), each block, the pooled features, the logits."""
        return ("stem", *(block.name for block in self._blocks()), "pool", "logits")

    def initial_parameters(self, seed: int) -> spec.Arrays:
        """He initialisation."""
        return data.initial_values(self.parameters(), seed)

    def initial_buffers(self) -> spec.Arrays:
        """Near 0 and 1, not on them."""
        return data.initial_values(self.buffers(), seed=0)

    def batches(self, seed: int, count: int) -> list[spec.Arrays]:
        """Standardised digits, or synthetic images."""
        config = self.config
        if not self.synthetic:
            return data.draw_digits(seed, self.batch_size, count)
        shape = (config.image_size, config.image_size, config.in_channels)
        return data.draw_images(seed, self.batch_size, shape, config.classes, count)

    def forward(
        self, tape: tape.Tape, parameters: dict[str, tape_node.Node], buffers: spec.Arrays, batch: spec.Arrays
    ) -> tuple[tape_node.Node, spec.Arrays, dict[str, Any]]:
        """See `spec.Workload`."""
        updated: spec.Arrays = {}

        def apply(unit: _Unit, x: Any) -> Any:
            x = tape.conv2d(x, tape.narrow(parameters[f"{unit.conv}.kernel"]), unit.stride, unit.kernel // 2)
            scale, bias = parameters[f"{unit.norm}.scale"], parameters[f"{unit.norm}.bias"]
            x, mean, var = tape.batch_norm(x, scale, bias, self.config.bn_eps)
            for last, value in (("mean", mean), ("var", var)):
                old = buffers[f"{unit.norm}.{last}"].astype(value.dtype)
                momentum = value.dtype.type(self.config.bn_momentum)
                updated[f"{unit.norm}.{last}"] = momentum * old + (1 - momentum) * value
            return x

        taps = {}
        x = tape.relu(apply(self._stem(), tape.narrow(tape.constant(batch["inputs"]))))
        taps["stem"] = x
        if self.config.stem_pool:
            x = tape.max_pool(x, window=3, stride=2, padding=1)
        for block in self._blocks():
            y = x
            for unit in block.units[:-1]:
                y = tape.relu(apply(unit, y))
            y = apply(block.units[-1], y)
            x = tape.relu(tape.add(y, apply(block.shortcut, x) if block.shortcut else x))
            taps[block.name] = x
        taps["pool"] = tape.mean_pool(x)
        taps["logits"] = tape.dense(taps["pool"], parameters["head.kernel"], parameters["head.bias"])
        return tape.cross_entropy(taps["logits"], batch["labels"]), updated, taps

    def flops_per_step(self) -> int:
        """3 (forward and backward) * 2 * batch * (sum over convolutions of size^2 * kernel^2 * in * out, and head).

        Taps that fall on the padding are counted, as a dense convolution does them.
        """
        products = sum(unit.size**2 * unit.kernel**2 * unit.fan_in * unit.fan_out for unit in self._units())
        return 6 * self.batch_size * (products + self._units_out() * self.config.classes)

    def products_per_step(self) -> list[products.Product]:
        """See `spec.Workload`."""
        found = []
        for i, unit in enumerate(self._units()):
            features = unit.fan_in, unit.fan_out
            found += made.convolution(unit.conv, self.batch_size, features, unit.window, first=i == 0)
        return found + made.dense("head", self.batch_size, self._units_out(), self.config.classes)

    def bytes_per_step(self, dtype: str) -> int:
        """Parameters, optimizer state, and the output of every convolution and of the head."""
        outputs = self.batch_size * (sum(unit.size**2 * unit.fan_out for unit in self._units()) + self.config.classes)
        return data.state_bytes(self.parameters(), self.optimizer, dtype) + data.activation_bytes(outputs, dtype)


def _halved(size: int, stride: int) -> int:
    """Output size of an odd kernel with padding kernel // 2."""
    return (size - 1) // stride + 1


def _block(name: str, fan_in: int, width: int, stride: int, size: int, config: ConvnetConfig) -> _Block:
    if config.bottleneck:
        plan = [(1, 1, width), (3, stride, width), (1, 1, width * EXPANSION)]
    else:
        plan = [(3, stride, width), (3, 1, width)]
    units, channels, out_size = [], fan_in, size
    for i, (kernel, unit_stride, fan_out) in enumerate(plan, start=1):
        in_size, out_size = out_size, _halved(out_size, unit_stride)
        names = f"{name}.conv{i}", f"{name}.bn{i}"
        units.append(_Unit(*names, kernel, unit_stride, channels, fan_out, out_size, in_size))
        channels = fan_out
    shortcut = None
    if stride != 1 or fan_in != channels:
        names = f"{name}.shortcut.conv", f"{name}.shortcut.bn"
        shortcut = _Unit(*names, 1, stride, fan_in, channels, out_size, size)
    return _Block(name, tuple(units), shortcut)


def make(preset: str) -> Convnet:
    """The workload of a preset."""
    config, batch_size = PRESETS[preset]
    return Convnet(preset, config, workloads.OPTIMIZERS["sgd"], batch_size, synthetic=config.image_size != 8)
