"""Every test: one pytest process per group (see conftest.py), two at a time, one closing line for all.

    python -m tests.run_all [--groups=core,jax] [--jobs=2] [--deadline_s=1500] [pytest arguments]

Exit code 0 when every group passed and ran tests. A group's output is printed when it ends, so that groups do not mix.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence

from xlacompare import frameworks

ROOT = pathlib.Path(__file__).resolve().parent.parent
NO_TESTS = 5  # pytest's exit code
SHORTEST = ("torch",)  # groups that end soonest


@dataclasses.dataclass
class Group:
    """One pytest process."""

    name: str
    process: subprocess.Popen
    log: pathlib.Path
    report: pathlib.Path
    start_s: float

    def end(self) -> None:
        """Ends the process and whatever it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def start(name: str, arguments: Sequence[str], folder: pathlib.Path) -> Group:
    """Starts the pytest process of a group."""
    report, log = folder / f"{name}.xml", folder / f"{name}.log"
    command = [sys.executable, "-m", "pytest", f"--only={name}", f"--junitxml={report}", "--durations=8", *arguments]
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "XLACOMPARE_TEST_LOCK": str(folder / "cores")},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    print(f"[{name}] started", flush=True)
    return Group(name, process, log, report, time.monotonic())


def counts(report: pathlib.Path) -> dict[str, int]:
    """Passed, failed (errors included) and skipped tests of a junit report; zeros when there is none."""
    if not report.exists():
        return {"passed": 0, "failed": 0, "skipped": 0}
    suites = ElementTree.parse(report).getroot().iter("testsuite")
    total = failed = skipped = 0
    for suite in suites:
        total += int(suite.get("tests", 0))
        failed += int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        skipped += int(suite.get("skipped", 0))
    return {"passed": total - failed - skipped, "failed": failed, "skipped": skipped}


def passed(name: str, code: int, selected: bool, lacking: Mapping[str, Sequence[str]]) -> bool:
    """Is this exit code fine? A group without tests is fine only where tests were selected, or where its framework is
    neither installed nor required."""
    if code != NO_TESTS:
        return code == 0
    required = os.environ.get("XLACOMPARE_REQUIRED_FRAMEWORKS", "").split(",")
    return selected or (bool(lacking.get(name)) and name not in required)


def run(names: Sequence[str], jobs: int, deadline_s: float, arguments: Sequence[str]) -> int:
    """Runs the groups; returns the exit code."""
    lacking = {name: frameworks.missing(name) for name in frameworks.FRAMEWORKS}
    waiting, running, failed = list(names), [], []
    sums = {"passed": 0, "failed": 0, "skipped": 0}
    with tempfile.TemporaryDirectory(prefix="xlacompare_tests_") as folder:
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    running.append(start(waiting.pop(0), arguments, pathlib.Path(folder)))
                time.sleep(0.2)
                for group in [g for g in running if _over(g, deadline_s)]:
                    running.remove(group)
                    if not passed(group.name, group.process.returncode, bool(arguments), lacking):
                        failed.append(group.name)
                    for key, value in counts(group.report).items():
                        sums[key] += value
        finally:
            for group in running:
                group.end()
    if failed:
        print(f"groups that failed: {', '.join(failed)}")
    print(f"{sums['passed']} passed, {max(sums['failed'], len(failed))} failed, {sums['skipped']} skipped", flush=True)
    return 1 if failed or not sums["passed"] else 0


def _over(group: Group, deadline_s: float) -> bool:
    """Has the group ended, by itself or by its deadline? Prints its output then."""
    late = time.monotonic() - group.start_s > deadline_s
    if group.process.poll() is None and not late:
        return False
    reason = f"killed: no end within {deadline_s:.0f} s" if group.process.poll() is None else ""
    group.end()
    print(f"===== [{group.name}] {time.monotonic() - group.start_s:.0f} s {reason}")
    print(group.log.read_text(encoding="utf-8", errors="replace"), flush=True)
    return True


def main(argv: Sequence[str]) -> int:
    """Parses the arguments; unknown ones go to pytest."""
    every = ["core", *frameworks.FRAMEWORKS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    longest_first = sorted(every, key=lambda name: name in SHORTEST)  # so that the last one is short
    parser.add_argument("--groups", default=",".join(longest_first))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--deadline_s", type=float, default=1500)
    options, rest = parser.parse_known_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # lets `finally` end the groups
    names = options.groups.split(",")
    if unknown := sorted(set(names) - set(every)):
        parser.error(f"unknown groups {', '.join(unknown)}; known: {', '.join(every)}")
    return run(names, options.jobs, options.deadline_s, rest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
