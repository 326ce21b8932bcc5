"""What a workload is: a description of work in NumPy that any framework can take up.

Neutral conventions, used by every workload:
  dense kernels are [in, out]; convolution kernels are [height, width, in, out]; images are [batch, height, width,
  channel]; embeddings are [rows, features]; token ids and labels are int32.
  Running statistics follow `running = momentum * running + (1 - momentum) * batch`, the variance is the biased one.
A framework's own layout is reached by a declared rule per kind of tensor (`layout.py`), never by guessing from shapes.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import numpy as np

from xlacompare.core import products

Arrays = dict[str, np.ndarray]

# dtype of a cell -> what it means; bfloat16 keeps parameters, optimizer state, normalisation statistics, softmax and
# loss in float32, and computes everything else in bfloat16.
DTYPES = ("float32", "float64", "bfloat16")


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """One parameter or buffer.

    Attributes:
      name: Neutral name, dotted, in Flax's terms: `block0.attention.qkv.kernel`. The last part is one of
        kernel, bias, scale, embedding (parameters), mean, var (buffers).
      shape: Shape in the neutral layout.
      kind: Key of the layout table: "dense", "conv", "embedding", "vector".
    """

    name: str
    shape: tuple[int, ...]
    kind: str


@dataclasses.dataclass(frozen=True)
class OptimizerSpec:
    """An optimizer, in one meaning for all frameworks.

    sgd:   v = momentum * v + (g + weight_decay * p);  p = p - learning_rate * v        (no dampening, no Nesterov)
    adamw: m, v are bias-corrected; p = p - learning_rate * (m / (sqrt(v) + eps) + weight_decay * p)   (decoupled;
           eps outside the square root, after bias correction)

    Sources: Sutskever et al. 2013 (momentum, in the form that torch.optim.SGD documents); Loshchilov and Hutter 2019.
    """

    name: str
    learning_rate: float
    momentum: float = 0.9
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0


class Workload(Protocol):
    """A model, its data and its formulas. Instances are immutable and picklable; all arrays are NumPy.

    Attributes:
      name: "mlp", "convnet" or "transformer".
      preset: "tiny", "small" or "base".
      config: Frozen dataclass of everything that an adapter needs to build the model (sizes, eps, momentum, dropout
        rate, strides, padding). `dataclasses.replace` on it is how tests plant a wrong epsilon.
      optimizer: The optimizer.
      batch_size: Examples per step.
      synthetic: True where the inputs are made up (images of preset `base`).
    """

    name: str
    preset: str
    config: Any
    optimizer: OptimizerSpec
    batch_size: int
    synthetic: bool

    def parameters(self) -> tuple[TensorSpec, ...]:
        """Parameters in program order."""
        ...

    def buffers(self) -> tuple[TensorSpec, ...]:
        """Running statistics in program order; empty where there are none."""
        ...

    def activation_names(self) -> tuple[str, ...]:
        """Names that the model taps, in program order; the last one is `logits`."""
        ...

    def initial_parameters(self, seed: int) -> Arrays:
        """float32 initial parameters by neutral name."""
        ...

    def initial_buffers(self) -> Arrays:
        """float32 initial buffers by neutral name."""
        ...

    def batches(self, seed: int, count: int) -> list[Arrays]:
        """Batches; each has `inputs`, `labels` (int32) and, with dropout, `mask.<name>` (float32, 0 or 1/(1-p))."""
        ...

    def forward(
        self, tape: Any, parameters: dict[str, Any], buffers: Arrays, batch: Arrays
    ) -> tuple[Any, Arrays, dict[str, Any]]:
        """The independent reference, on the NumPy tape of `tape.py`.

        Returns:
          The mean loss as a scalar tape node, the updated buffers, and the tapped activations by name.
        """
        ...

    def flops_per_step(self) -> int:
        """By formula: a multiply-add of a matrix product or convolution counts 2; backward is twice forward."""
        ...

    def products_per_step(self) -> list[products.Product]:
        """Every matrix product and convolution of a step, once each, by the rule of `core.products`.

        Unlike `flops_per_step` it is what a program holds: no gradient of the inputs, no product with padding. The
        census of every cell is held against it.
        """
        ...

    def bytes_per_step(self, dtype: str) -> int:
        """Least bytes moved: parameters and optimizer state read and written once, activations both once."""
        ...
