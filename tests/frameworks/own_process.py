"""What an arm with an environment of its own is asked for, in one child.

python -m tests.frameworks.own_process NAME ARM
"""

from __future__ import annotations

import json
import sys

from tests.frameworks import cases, recompiles
from xlacompare import frameworks
from xlacompare.frameworks import gate


def main(name: str, arm: str) -> None:
    """Prints the gate of the arm and three blocks, as one line of JSON."""
    framework = frameworks.load_framework(name)
    step = cases.shared_step(framework, arm)
    workload, made = cases.inputs("mlp")
    reference = cases.reference("mlp", "float32")
    result = gate.arm_gate(step, workload, made.parameters, made.buffers, reference, "float32", cases.STEPS)
    print(json.dumps({"gate": result.to_dict(), "blocks": recompiles.blocks(framework, step, arm)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
