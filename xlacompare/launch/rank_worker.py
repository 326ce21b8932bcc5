"""A rank's process: connects to the coordinator and to the other ranks, builds collectives or steps, runs blocks.

`python -m xlacompare.launch.rank_worker`, with a socket or the coordinator's address, and the rank, in the environment
(`meeting`). A thread reads the requests, so that "where are you" is answered while the process hangs in a collective,
and so that the process ends as soon as its coordinator is gone. What a request raises beyond the errors with a name
ends the process with a traceback in its log; the coordinator is told the last line first.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import pathlib
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from xlacompare import frameworks
from xlacompare.collectives import request as requests
from xlacompare.core import cell as cells
from xlacompare.core import errors, timing
from xlacompare.frameworks import ranks as seam
from xlacompare.launch import meeting, parallel_bench, protocol, rank_bench, rank_link
from xlacompare.parallel import request as parallel_requests
from xlacompare.workloads import archive, reference_file

PR_SET_PDEATHSIG = 1  # linux/prctl.h
# Launchers' names for the rank of a process, where this run's own name is not set (mpiexec starts the rank).
RANK_VARIABLES = (meeting.RANK_VARIABLE, "PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK")


class Session:
    """The state of a rank's process: its ranks, and the collectives and training steps that are built."""

    def __init__(self, notes: rank_bench.Notes) -> None:
        self.notes = notes
        self.ranks: seam.Ranks | None = None
        self.benches: dict[str, rank_bench.Bench | parallel_bench.Bench] = {}
        self.inputs: dict[str, parallel_bench.Inputs] = {}
        self.link = rank_link.RankLink.of(os.environ)

    @property
    def connected(self) -> seam.Ranks:
        """The ranks, once started."""
        if self.ranks is None:
            raise errors.BadInputError("the rank was asked before `start`")
        return self.ranks

    def start(self, request: dict[str, Any]) -> dict[str, Any]:
        """Pins the process, imports the framework, meets the other ranks.

        Pinned before the import: thread pools size themselves by the cores that they see.
        """
        if request["cores"] is not None and hasattr(os, "sched_setaffinity"):
            with contextlib.suppress(OSError):  # a scheduler's cpuset holds other cores: they stay
                os.sched_setaffinity(0, request["cores"])
        name = request["framework"]
        begin = time.perf_counter()
        self.notes.enter(f"importing {name}")
        for package in frameworks.entry(name).requires:
            importlib.import_module(package)
        imported = time.perf_counter()
        self.notes.enter("meeting the other ranks")
        self.ranks = frameworks.connect(name, request["transport"], request["mode"], seam.Place(**request["place"]))
        started = time.perf_counter()
        self.notes.enter("ready")
        return {
            "describe": self.ranks.describe(),
            "local": list(self.ranks.local),
            "import_s": imported - begin,
            "start_s": started - imported,
            "affinity": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        }

    def build(self, request: dict[str, Any]) -> dict[str, Any]:
        """Builds a collective and runs it twice."""
        wanted = requests.Request.from_dict(request["request"])
        made, answer = rank_bench.build(self.connected, wanted, request["seed"], self.notes)
        self.benches[request["cell"]] = made
        return answer

    def load(self, request: dict[str, Any]) -> None:
        """Reads what the steps of a comparison share."""
        self.notes.enter("reading the inputs")
        files = pathlib.Path(request["archive"]), pathlib.Path(request["reference"])
        self.inputs = {request["inputs"]: parallel_bench.Inputs(archive.load(files[0]), reference_file.load(files[1]))}

    def build_step(self, request: dict[str, Any]) -> dict[str, Any]:
        """Builds a training step, checks it and runs it once more; the answer says what the gate said."""
        cell, asked = cells.Cell.from_dict(request["point"]), parallel_requests.Request.from_dict(request["request"])
        self.link.set_for(cell)
        given = self.inputs[request["inputs"]]
        about = (cell, asked, given, self.notes, list(self.benches.values()))
        made, answer = parallel_bench.build(self.connected, *about)
        self.benches[request["cell"]] = made
        return answer

    def communications(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """What a training step communicates, as rank 0 sees it."""
        return self._step(request).communications()

    def close(self, request: dict[str, Any]) -> None:
        """Frees a training step that is not measured any further."""
        self._step(request).close()
        del self.benches[request["cell"]]

    def _step(self, request: dict[str, Any]) -> parallel_bench.Bench:
        made = self.benches[request["cell"]]
        assert isinstance(made, parallel_bench.Bench)
        return made

    def blocks(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        """Blocks behind barriers."""
        bench = self.benches[request["cell"]]
        if isinstance(bench, parallel_bench.Bench):
            self.link.set_for(bench.cell)
        return bench.blocks(request["n"], request["count"], request["untimed"], request["series"])

    def fence(self, request: dict[str, Any]) -> dict[str, Any]:
        """The fence's self-test."""
        return self.benches[request["cell"]].fence_test(request["n"])

    def profile(self, request: dict[str, Any]) -> dict[str, Any]:
        """Traced steps of a training step."""
        bench = self._step(request)
        self.link.set_for(bench.cell)
        return bench.profile(request["n"], request["folder"])

    def finish(self, request: dict[str, Any]) -> dict[str, Any]:
        """Values, copy, what ran of a collective; the work of a training step."""
        bench = self.benches.pop(request["cell"])
        if isinstance(bench, parallel_bench.Bench):
            return bench.finish(request["work"])
        return bench.finish()


class Reader(threading.Thread):
    """Reads requests into a queue, answers "where" itself, ends the process when the coordinator is gone."""

    def __init__(self, channel: protocol.Channel, notes: rank_bench.Notes) -> None:
        super().__init__(name="coordinator", daemon=True)
        self.requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._channel, self._notes, self._lock = channel, notes, threading.Lock()
        self._main = threading.main_thread().ident

    def send(self, message: dict[str, Any]) -> None:
        """Sends from any thread; a coordinator that is gone ends the process."""
        try:
            with self._lock:
                self._channel.send(message)
        except protocol.StreamClosed:
            os._exit(0)

    def run(self) -> None:
        """Serves until the coordinator says `exit` or is gone: then nobody wants the process any more."""
        while True:
            try:
                request = self._channel.receive()
            except protocol.StreamClosed:
                os._exit(0)
            if request["op"] == "where":
                self.send({"where": self._where()})
            elif request["op"] == "leave":  # at once, whatever the main thread waits for
                os._exit(0)
            else:
                self.requests.put(request)

    def _where(self) -> dict[str, Any]:
        sequence, note = self._notes.now
        frame = sys._current_frames().get(self._main or 0)
        return {"sequence": sequence, "note": note, "index": _loop_index(frame), "frame": _line_of(frame)}


def _loop_index(frame: FrameType | None) -> int | None:
    """Run that the timed loop is in: read from its frame, so that the loop itself need not count for us."""
    while frame is not None:
        if frame.f_code is timing.time_block.__code__:
            return frame.f_locals.get("index")
        frame = frame.f_back
    return None


def _line_of(frame: FrameType | None) -> str:
    """The innermost Python line, and the innermost one outside of the standard library where they differ."""
    if frame is None:
        return ""
    code = frame.f_code
    return f"{code.co_name} ({os.path.basename(code.co_filename)}:{frame.f_lineno})"


def serve(reader: Reader, session: Session) -> None:
    """Answers requests until `exit`."""
    operations: dict[str, Callable[[dict[str, Any]], Any]] = {
        "start": session.start,
        "build": session.build,
        "load": session.load,
        "build_step": session.build_step,
        "communications": session.communications,
        "close": session.close,
        "blocks": session.blocks,
        "fence": session.fence,
        "profile": session.profile,
        "finish": session.finish,
    }
    while True:
        request = reader.requests.get()
        if request["op"] == "exit":
            reader.send({"ok": None})
            if session.ranks is not None:
                session.ranks.close()
            sys.stdout.flush()
            os._exit(0)  # a framework's own farewell takes up to ten seconds, and nothing is left to save
        reader.send(_answer(operations[request["op"]], request))


def _answer(operation: Callable[[dict[str, Any]], Any], request: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"ok": operation(request)}
    except (errors.UnsupportedError, errors.RecordError) as error:
        return {"error": {"status": "unsupported", "message": str(error)}}
    except MemoryError as error:
        return {"error": {"status": "out_of_memory", "message": f"out of memory: {error}"}}


def _tell(reader: Reader) -> Callable[[type[BaseException], BaseException, TracebackType | None], None]:
    """What an exception that nobody caught does: the traceback to the log, its line to the coordinator, the end.

    No farewell: the others are in a collective and would wait for it.
    """

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        now = time.monotonic()
        traceback.print_exception(kind, error, trace)
        sys.stderr.flush()
        line = traceback.format_exception_only(kind, error)[-1].strip()[:300]
        reader.send({"raised": line, "at": now})
        os._exit(1)

    return hook


def own_rank() -> int:
    """Rank of this process by the first variable that tells."""
    return int(next(os.environ[name] for name in RANK_VARIABLES if name in os.environ))


def _redirect(rank: int) -> None:
    """Standard output and error into the log that the environment names; a launcher's stream where that cannot be."""
    path = os.environ.pop(meeting.LOG_VARIABLE, "").replace("{rank}", str(rank))
    if not path:
        return
    try:
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError:  # another machine, without the coordinator's folder
        return
    os.dup2(log, 1)
    os.dup2(log, 2)


def _report(hello: dict[str, Any]) -> protocol.Channel:
    """Says who this is, over the inherited socket or to the meeting."""
    inherited = os.environ.pop(meeting.CHANNEL_VARIABLE, None)
    if inherited is not None:
        channel = protocol.Channel(socket.socket(fileno=int(inherited)))
        channel.send(hello)
        return channel
    address, _, port = os.environ.pop(meeting.ADDRESS_VARIABLE).rpartition(":")
    return meeting.report(address, int(port), {**hello, "token": os.environ.pop(meeting.TOKEN_VARIABLE)})


def main() -> None:
    """Reports to the coordinator and serves it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # never outlive the parent
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the coordinator's; it ends its ranks
    rank = own_rank()
    _redirect(rank)
    try:
        channel = _report({"rank": rank, "pid": os.getpid(), "host": socket.gethostname()})
    except protocol.StreamClosed:
        return  # the run ended while this process started
    notes = rank_bench.Notes()
    reader = Reader(channel, notes)
    sys.excepthook = _tell(reader)
    reader.start()
    serve(reader, Session(notes))


if __name__ == "__main__":
    main()
