"""`python -m tests.standin.joined FOLDER TRANSPORTS`: the stand-in's collectives under somebody else's launcher."""

from __future__ import annotations

import os
import pathlib
import sys

from xlacompare.collectives import config
from xlacompare.launch import campaign, collective_campaign, joining, membership


def main(folder: pathlib.Path, transports: tuple[str, ...]) -> int:
    me = membership.detect(os.environ)
    if me is not None and me.rank:
        return joining.serve(me)
    run = config.CollectiveConfig(
        ("standin",), ("all_gather", "ppermute"), transports, (64,), cell_s=0.01, min_block_s=0.002, deadline_s=5.0
    )
    with joining.launcher_of(me, folder) as launcher:
        made = collective_campaign.execute(run, folder, "run", sys.argv, campaign.Progress(), launcher)
    return 3 if made.failed else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]), tuple(sys.argv[2].split(","))))
