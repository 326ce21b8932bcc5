"""What a kink costs: ReLU units so near zero that rounding decides on which side they fall.

The error of a smooth program follows its roundings; that of a program with ReLU jumps when a unit falls on the other
side of zero: the forward value hardly changes, but the unit's whole contribution to the gradient appears or vanishes,
and the later losses drift apart (seen: 4e-8 at step 2, 7e-6 at step 3, 2e-4 at step 5 of the convnet in float32, in
torch.compile and, at other steps, in our own tape). Which units flip is luck; what a flip costs is not. So the
reference is run in float64 once more, with every unit flipped that the dtype leaves undecided.
"""

from __future__ import annotations

import numpy as np

from xlacompare.workloads import spec, tape, tape_node

# A unit is undecided within this many typical errors of zero: the errors of a framework are ours times a few, at most.
REACH = 4.0


def reach(rough: spec.Arrays, exact: spec.Arrays) -> float:
    """How near to zero a unit is undecided, relative to the largest unit of its layer.

    Args:
      rough: Activations in the dtype, by name.
      exact: The same in float64.
    """
    typical = [np.abs(rough[n] - exact[n]).mean() / max(np.abs(exact[n]).max(), 1e-300) for n in exact]
    return REACH * float(max(typical))


class KinkTape(tape.Tape):
    """A float64 tape whose ReLU lets the gradient through on the wrong side, for units within `near` of zero."""

    def __init__(self, near: float) -> None:
        """`near` is relative to the largest input of the ReLU: what a framework may be off by there."""
        super().__init__("float64")
        self.near = near

    def relu(self, x: tape_node.Node) -> tape_node.Node:
        """max(x, 0); its derivative is wrong for the undecided units."""
        undecided = np.abs(x.value) <= self.near * np.abs(x.value).max(initial=0.0)
        active = (x.value > 0) ^ undecided
        return self._record((x,), np.maximum(x.value, 0), lambda g: (g * active,))
