"""Was this process started by torchrun, mpirun, srun or on a TPU pod, and as which rank? Read from the environment."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
from collections.abc import Mapping

from xlacompare.core import errors, machine
from xlacompare.launch import meeting

# Host (of rank 0) where the launched processes meet, where the launcher does not say; a secret, where others are on
# the network: both are to be set for all ranks.
HOST_VARIABLE = "XLACOMPARE_COORDINATOR"
SECRET_VARIABLE = "XLACOMPARE_SECRET"
PORTS = 16
FIRST_PORT, LAST_PORT = 10000, 32000  # below the range from which the system hands out ports
MPI_LAUNCHERS = ("hydra_pmi_proxy", "mpiexec", "mpirun", "orted", "prted")


@dataclasses.dataclass(frozen=True)
class Membership:
    """A process among those that a launcher started.

    Attributes:
      launcher: "torchrun", "mpirun", "srun" or "tpu-pod".
      address: Where rank 0 can be reached.
      key: The same text for all ranks of this job, another one for another job.
    """

    launcher: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    address: str
    key: str

    @property
    def token(self) -> str:
        """What the ranks of this job know each other by."""
        secret = os.environ.get(SECRET_VARIABLE, "")
        return hashlib.sha256(f"xlacompare {self.key} {os.getuid()} {secret}".encode()).hexdigest()

    @property
    def ports(self) -> tuple[int, ...]:
        """Ports where rank 0 may listen, best first: the same for all ranks, without a word between them."""
        digests = (hashlib.sha256(f"{self.token} {i}".encode()).digest() for i in range(PORTS))
        return tuple(FIRST_PORT + int.from_bytes(d[:4], "big") % (LAST_PORT - FIRST_PORT) for d in digests)

    @property
    def one_machine(self) -> bool:
        """Whether all ranks are on this machine."""
        return self.local_size == self.size


def detect(variables: Mapping[str, str]) -> Membership | None:
    """The membership that the environment tells of; None for a process that stands alone (a job of one rank too).

    Raises:
      BadInputError: The launcher does not say where rank 0 is.
    """
    for found in (_torchrun(variables), _mpirun(variables), _srun(variables), _tpu(variables)):
        if found is not None and found.size > 1:
            host = variables.get(HOST_VARIABLE)
            return dataclasses.replace(found, address=host) if host else _checked(found)
    return None


def _checked(found: Membership) -> Membership:
    if found.address:
        return found
    raise errors.BadInputError(
        f"{found.launcher} over several machines does not say where rank 0 is; set {HOST_VARIABLE}=HOST for all ranks"
    )


def _torchrun(variables: Mapping[str, str]) -> Membership | None:
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK")
    if not all(name in variables for name in names):
        return None
    run = [variables.get(f"TORCHELASTIC_{name}", "") for name in ("RUN_ID", "RESTART_COUNT")]
    return Membership(
        launcher="torchrun",
        rank=int(variables["RANK"]),
        size=int(variables["WORLD_SIZE"]),
        local_rank=int(variables["LOCAL_RANK"]),
        local_size=int(variables.get("LOCAL_WORLD_SIZE", variables["WORLD_SIZE"])),
        address=variables["MASTER_ADDR"],
        key=":".join(["torchrun", variables["MASTER_ADDR"], variables["MASTER_PORT"], *run]),
    )


def _mpirun(variables: Mapping[str, str]) -> Membership | None:
    """MPICH's and Intel's hydra, or Open MPI. Slurm sets PMI variables as well: hydra's control socket tells."""
    if "OMPI_COMM_WORLD_RANK" in variables:
        rank, size = variables["OMPI_COMM_WORLD_RANK"], variables["OMPI_COMM_WORLD_SIZE"]
        local = (variables["OMPI_COMM_WORLD_LOCAL_RANK"], variables["OMPI_COMM_WORLD_LOCAL_SIZE"])
        key = variables.get("PMIX_NAMESPACE", "")
    elif "PMI_RANK" in variables and "PMI_SIZE" in variables and "MPI_LOCALNRANKS" in variables:
        rank, size = variables["PMI_RANK"], variables["PMI_SIZE"]
        local = (variables["MPI_LOCALRANKID"], variables["MPI_LOCALNRANKS"])
        key = variables.get("PMI_JOBID", "") if local[1] != size else str(_launcher_pid())
    else:
        return None
    here = meeting.LOOPBACK if local[1] == size else ""
    return Membership("mpirun", int(rank), int(size), int(local[0]), int(local[1]), here, f"mpirun:{key}")


def _launcher_pid() -> int:
    """Process id of the launcher above us: what the ranks of one machine have in common, shells between or not."""
    pid = os.getppid()
    while pid > 1:
        status = machine.read_text(machine.PROC / str(pid) / "status") or ""
        fields = dict(line.partition(":")[::2] for line in status.splitlines())
        if fields.get("Name", "").strip().startswith(MPI_LAUNCHERS):
            return pid
        pid = int(fields.get("PPid", "0"))
    return os.getppid()


def _srun(variables: Mapping[str, str]) -> Membership | None:
    """A task of a job step. A batch script itself is none: it has no step number."""
    names = ("SLURM_PROCID", "SLURM_STEP_ID", "SLURM_JOB_ID")
    size = variables.get("SLURM_STEP_NUM_TASKS", variables.get("SLURM_NTASKS"))
    if size is None or not all(name in variables for name in names):
        return None
    nodes = int(variables.get("SLURM_STEP_NUM_NODES", variables.get("SLURM_NNODES", "1")))
    tasks = variables.get("SLURM_STEP_TASKS_PER_NODE", variables.get("SLURM_TASKS_PER_NODE", size))
    first = first_host(variables.get("SLURM_STEP_NODELIST", variables.get("SLURM_JOB_NODELIST", "")))
    return Membership(
        launcher="srun",
        rank=int(variables["SLURM_PROCID"]),
        size=int(size),
        local_rank=int(variables.get("SLURM_LOCALID", "0")),
        local_size=tasks_of_node(tasks, int(variables.get("SLURM_NODEID", "0"))),
        address=meeting.LOOPBACK if nodes == 1 else first or variables.get("SLURM_LAUNCH_NODE_IPADDR", ""),
        key=f"srun:{variables['SLURM_JOB_ID']}.{variables['SLURM_STEP_ID']}",
    )


def _tpu(variables: Mapping[str, str]) -> Membership | None:
    hosts = [host.strip() for host in variables.get("TPU_WORKER_HOSTNAMES", "").split(",") if host.strip()]
    if "TPU_WORKER_ID" not in variables or len(hosts) < 2:
        return None
    return Membership("tpu-pod", int(variables["TPU_WORKER_ID"]), len(hosts), 0, 1, hosts[0], f"tpu:{','.join(hosts)}")


def first_host(text: str) -> str:
    """First host of Slurm's list: "gpu[03-05,9],login" is gpu03."""
    match = re.match(r"([^,\[]+)(?:\[(\w+))?", text)
    return f"{match[1]}{match[2] or ''}" if match else ""


def tasks_of_node(text: str, node: int) -> int:
    """Tasks on a node by Slurm's list: "2(x3),1" is 2, 2, 2, 1."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if match:
            counts += [int(match[1])] * int(match[2] or 1)
    return counts[node] if node < len(counts) else 1
