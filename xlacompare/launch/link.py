"""A link of known bandwidth: network namespaces round one hub, every port throttled. Needs root and iproute2.

Ranks that run in these namespaces exchange their bytes over a link whose rate is known, so that a measured bandwidth
can be right or wrong. Each rank has a namespace with one interface; the other ends meet in a bridge inside a namespace
of its own, so that nothing of the machine's own network changes. Both ends of each pair are throttled by a token bucket
(tc-tbf(8)): what a rank sends, and what it receives. Loopback inside a namespace is up and not throttled.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence

from xlacompare.core import errors
from xlacompare.launch import rank_link

NETNS_ETC = pathlib.Path("/etc/netns")  # `ip netns exec` mounts the files below NAME/ over those of /etc
# Bytes that may pass at once: far below the sizes of a bandwidth fit, and above what a 10 ms tick of the kernel lets
# pass at 200 Mbit/s.
BURST = "256kb"
QUEUE = "1s"


def why_not() -> str | None:
    """Why this process cannot make such a link; None when it can."""
    if lacking := [tool for tool in ("ip", "tc") if shutil.which(tool) is None]:
        return f"{' and '.join(lacking)} not found (Debian: apt-get install iproute2)"
    if os.geteuid() != 0:
        return "network namespaces need root"
    name = f"xlacompare-try-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"no network namespaces here: {made.stderr.strip()}"
    _run("ip", "netns", "del", name)
    return None


class Link:
    """`size` namespaces that reach each other at `rate`.

    Attributes:
      addresses: Address of each rank.
      names: Namespace of each rank.
    """

    def __init__(self, size: int, rate: str, subnet: str = "10.231.7") -> None:
        """Describes a link; `link` makes it.

        Args:
          size: Number of ranks.
          rate: In tc's words: "1gbit", "200mbit".
          subnet: First three numbers of the addresses, private to the namespaces.
        """
        prefix = f"xlc{os.getpid()}"
        self.rate = rate
        self.hub = f"{prefix}hub"
        self.names = [f"{prefix}r{rank}" for rank in range(size)]
        self.addresses = [f"{subnet}.{rank + 1}" for rank in range(size)]

    def make(self) -> None:
        """Makes namespaces, interfaces and throttles."""
        _run("ip", "netns", "add", self.hub)
        self._inside(self.hub, "ip link add name bridge type bridge")
        self._inside(self.hub, "ip link set bridge up")
        for rank, (name, address) in enumerate(zip(self.names, self.addresses, strict=True)):
            _run("ip", "netns", "add", name)
            # JAX's gloo listens on the address of the host's name.
            folder = NETNS_ETC / name
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "hosts").write_text(f"127.0.0.1 localhost\n{address} {socket.gethostname()}\n")
            _run(*f"ip link add port{rank} netns {self.hub} type veth peer name link0 netns {name}".split())
            self._inside(self.hub, f"ip link set port{rank} master bridge")
            self._inside(self.hub, f"ip link set port{rank} up")
            self._inside(name, f"ip address add {address}/24 dev link0")
            self._inside(name, "ip link set link0 up")
            self._inside(name, "ip link set lo up")
        self.throttle(self.rate)

    def throttle(self, rate: str) -> None:
        """Sets the rate of every port, also while traffic flows."""
        self.rate = rate
        for rank, name in enumerate(self.names):
            for where, device in ((name, "link0"), (self.hub, f"port{rank}")):
                rule = f"tc qdisc replace dev {device} root tbf rate {rate} burst {BURST} latency {QUEUE}"
                self._inside(where, rule)

    def remove(self) -> None:
        """Removes all that `make` made; what is left of a half-made link too."""
        for name in [*self.names, self.hub]:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
            shutil.rmtree(NETNS_ETC / name, ignore_errors=True)

    def variables(self) -> dict[str, str]:
        """Variables of a process inside a rank's namespace."""
        return {"GLOO_SOCKET_IFNAME": "link0", rank_link.VARIABLE: f"link0 {self.rate} {BURST} {QUEUE}"}

    def start(
        self, rank: int, command: Sequence[str], environment: Mapping[str, str | None], **options: object
    ) -> subprocess.Popen[str]:
        """Starts a command in a rank's namespace, in a process group of its own.

        Args:
          rank: Whose namespace.
          command: Program and arguments.
          environment: Variables on top of this process's; None removes one.
          **options: Of `subprocess.Popen`.
        """
        merged: dict[str, str | None] = {**os.environ, **self.variables(), **environment}
        return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
            ["ip", "netns", "exec", self.names[rank], *command],
            env={key: value for key, value in merged.items() if value is not None},
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            **options,
        )

    def _inside(self, name: str, command: str) -> None:
        _run("ip", "netns", "exec", name, *command.split())


@contextlib.contextmanager
def link(size: int, rate: str) -> Iterator[Link]:
    """A link that is gone afterwards.

    Raises:
      UnsupportedError: Namespaces cannot be made here, with the reason.
    """
    if reason := why_not():
        raise errors.UnsupportedError(f"a link of known bandwidth: {reason}")
    made = Link(size, rate)
    try:
        made.make()
        yield made
    finally:
        made.remove()


def joined(link_: Link, rank: int, port: int, one_machine: bool = False) -> dict[str, str]:
    """Variables by which a command that runs in a rank's namespace joins the others (torchrun's names).

    Args:
      link_: The link.
      rank: Whose namespace.
      port: Where the ranks meet.
      one_machine: Whether the ranks share the cores of this machine; else each takes itself for alone.
    """
    size = len(link_.names)
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank if one_machine else 0),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size if one_machine else 1),
        "MASTER_ADDR": link_.addresses[0],
        "MASTER_PORT": str(port),
    }


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise errors.UnsupportedError(f"{' '.join(command)}: {done.stderr.strip()}")
