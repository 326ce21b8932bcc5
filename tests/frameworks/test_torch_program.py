"""Native torch's programs: it has none in StableHLO, and says so."""

from __future__ import annotations

import pytest

from tests.frameworks import cases
from xlacompare import frameworks
from xlacompare.core import errors


def test_no_program():
    step = cases.build(frameworks.load_framework("torch"), "mlp", "eager")
    with pytest.raises(errors.UnsupportedError, match="torchax"):
        frameworks.capture("torch", step)
