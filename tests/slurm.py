"""A real Slurm on this machine, made for a test and gone after it: munged, slurmctld, slurmd, from Debian's packages.

Everything lives in one new folder: keys, sockets, state, logs. Ports are free ones, so that a Slurm of the machine's
own is not touched. Needs root (slurmd does).
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "scontrol")
CONFIGURATION = """\
ClusterName=xlacompare
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
SlurmctldPort={controller_port}
SlurmdPort={daemon_port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
KillWait=5
MessageTimeout=30
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} RealMemory=1000 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
"""


def why_not() -> str | None:
    """Why Slurm cannot be started here; None when it can."""
    if lacking := [program for program in PROGRAMS if shutil.which(program, path=_search_path()) is None]:
        return f"no {', '.join(lacking)} (Debian: apt-get install slurm-wlm munge)"
    return None if os.geteuid() == 0 else "slurmd needs root"


def _search_path() -> str:
    return os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Slurm:
    """A running Slurm of one node.

    Attributes:
      environment: What `srun`, `sbatch` and their kin need beside the caller's own variables.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": _search_path()}
        self._processes: list[subprocess.Popen] = []

    def start(self) -> None:
        """Starts the three daemons and waits until the node takes jobs."""
        (self.folder / "state").mkdir()
        (self.folder / "spool").mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        values = {"host": socket.gethostname().split(".")[0], "folder": self.folder, "cores": os.cpu_count()}
        ports = {"controller_port": _free_port(), "daemon_port": _free_port()}
        (self.folder / "slurm.conf").write_text(CONFIGURATION.format(**values, **ports))
        self._daemon(
            *("munged", "--foreground", "--force", f"--key-file={key}", f"--socket={self.folder}/munge.socket"),
            *(f"--log-file={self.folder}/munged.log", f"--pid-file={self.folder}/munged.pid", "--num-threads=1"),
            *(f"--seed-file={self.folder}/munged.seed",),
        )
        self._daemon("slurmctld", "-D", "-i")
        self._daemon("slurmd", "-D")
        self._wait_for_the_node()

    def _daemon(self, name: str, *arguments: str) -> None:
        with open(self.folder / f"{name}.out", "wb") as output:
            self._processes.append(
                subprocess.Popen(
                    [name, *arguments],
                    env={**os.environ, **self.environment},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            )

    def _wait_for_the_node(self, deadline_s: float = 60) -> None:
        end, answer = time.monotonic() + deadline_s, ""
        while time.monotonic() < end:
            answer = self.ask("sinfo", "--noheader", "--format=%T")
            if answer.strip() in ("idle", "mixed"):
                return
            time.sleep(0.5)
        logs = [path.read_text(errors="replace")[-1500:] for path in self.folder.glob("*.[lo][ou][gt]")]
        raise TimeoutError("\n".join([f"Slurm's node is {answer.strip()!r} after {deadline_s} s", *logs]))

    def ask(self, *command: str) -> str:
        """Output of a Slurm command."""
        done = subprocess.run(
            command, env={**os.environ, **self.environment}, capture_output=True, text=True, timeout=60, check=False
        )
        return done.stdout + done.stderr

    def stop(self) -> None:
        """Ends the jobs, the daemons and what they started."""
        self.ask("scancel", "--state=RUNNING")
        for process in reversed(self._processes):
            process.terminate()
        for process in reversed(self._processes):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextlib.contextmanager
def running(folder: pathlib.Path) -> Iterator[Slurm]:
    """A Slurm that is gone afterwards."""
    made = Slurm(folder)
    try:
        made.start()
        yield made
    finally:
        made.stop()
