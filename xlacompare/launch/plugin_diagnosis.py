"""Which PJRT plugins are installed, and which of them start: each is tried in a child process."""

from __future__ import annotations

import importlib.util

from xlacompare.core import errors
from xlacompare.graph import plugins
from xlacompare.launch.diagnosis import FAILED, LACKING, OK, Finding

AREA = "plugin"


def examine(deadline_s: float) -> list[Finding]:
    """One finding for each known plugin that is installed, or one that says how to get some."""
    if importlib.util.find_spec("pypjrt") is None:
        return [Finding(AREA, "pypjrt", LACKING, "not installed: it loads PJRT plugins (--pjrt_plugin)", plugins.EXTRA)]
    found = plugins.installed()
    if not found:
        return [Finding(AREA, "any", LACKING, "no known PJRT plugin is installed (--pjrt_plugin)", plugins.EXTRA)]
    return [examine_plugin(item, deadline_s) for item in found]


def examine_plugin(found: plugins.Found, deadline_s: float) -> Finding:
    """Does the plugin load and start its client?"""
    try:
        made = plugins.examine(found, deadline_s)
    except errors.BadInputError as error:
        return Finding(AREA, found.name, FAILED, str(error))
    return Finding(AREA, found.name, OK, f"PJRT API {made.api_version} for {made.platform}, sha256 {made.sha256}")
