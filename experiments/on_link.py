"""The public command over ranks on a link of known rate: one process in each namespace, as a launcher starts them."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from collections.abc import Mapping, Sequence

from xlacompare.launch import link as links

JOIN_PORT = 29400


def run(
    link: links.Link,
    arguments: Sequence[str],
    folder: pathlib.Path,
    timeout_s: float = 900,
    share_cores: bool = False,
    accepted: Sequence[int] = (0,),
    variables: Mapping[str, str] | None = None,
) -> None:
    """Runs `python -m xlacompare.run` on every rank of a link.

    Args:
      link: The link.
      arguments: Flags, without --output_dir and --format.
      folder: For the records.
      timeout_s: Seconds for all of it.
      share_cores: Each rank gets its share of this machine's cores, as ranks of one machine do; else each takes itself
        for alone on its machine and has all of them, which is right only where ranks do not compute.
      accepted: Exit codes that are no failure; 1 and 3 where a cell may fail.
      variables: Further ones of the environment.

    Raises:
      RuntimeError: A rank ended with another one.
    """
    command = [sys.executable, "-m", "xlacompare.run", *arguments, f"--output_dir={folder}", "--format=json"]
    processes = [
        link.start(
            rank,
            command,
            {**links.joined(link, rank, JOIN_PORT, share_cores), **(variables or {})},
            stdout=subprocess.DEVNULL,
        )
        for rank in range(len(link.names))
    ]
    try:
        codes = [process.wait(timeout_s) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    if codes[0] not in accepted or any(codes[1:]):
        raise RuntimeError(f"the ranks ended with {codes}; records: {folder}")
