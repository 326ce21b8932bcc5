"""The adapter with the fault."""

from __future__ import annotations

import pytest

from tests.frameworks import faults_torch
from xlacompare.frameworks.on_torch import framework


class Adapter(framework.Adapter):
    """Plants the fault for as long as its process lives."""

    name = "extra_product"

    def __init__(self) -> None:
        super().__init__()
        faults_torch.WORK_PATCHES["extra product"](pytest.MonkeyPatch())
