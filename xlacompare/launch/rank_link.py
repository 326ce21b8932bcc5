"""The link that a rank's process runs on, where it is one of `launch.link`: its rate, changed for planted cells.

A rank's own port is throttled further; the hub's keeps its rate, so that the slower of the two is what a transfer sees.
"""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Mapping

from xlacompare.core import cell as cells
from xlacompare.core import errors
from xlacompare.launch import planted

# "INTERFACE RATE BURST QUEUE", set by whoever starts ranks on a link.
VARIABLE = "XLACOMPARE_LINK"


@dataclasses.dataclass
class RankLink:
    """The link as this process sees it.

    Attributes:
      own: Rate that the link was made with; "" where there is no such link.
      now: Rate in force.
    """

    device: str
    own: str
    burst: str
    queue: str
    now: str

    @classmethod
    def of(cls, variables: Mapping[str, str]) -> RankLink:
        """By the environment."""
        device, own, burst, queue = (variables.get(VARIABLE, "").split() + [""] * 4)[:4]
        return cls(device, own, burst, queue, own)

    def set_for(self, cell: cells.Cell) -> None:
        """Gives the link the rate that a cell plants, or its own.

        Raises:
          UnsupportedError: The cell plants a rate, and this process is on no link of known rate.
        """
        wanted = str(dict(cell.changed).get(planted.LINK, self.own))
        if wanted == self.now:
            return
        if not self.own:
            raise errors.UnsupportedError(
                f"{planted.LINK}={wanted}: the ranks are on no throttled link (see experiments/known_link.py)"
            )
        rule = f"tc qdisc replace dev {self.device} root tbf rate {wanted} burst {self.burst} latency {self.queue}"
        done = subprocess.run(rule.split(), capture_output=True, text=True, check=False)
        if done.returncode:
            raise errors.UnsupportedError(f"{rule}: {done.stderr.strip()}")
        self.now = wanted
