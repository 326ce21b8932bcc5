"""jax's strategies, each with the setting "extra_products": so many superfluous matrix products in every step."""

from __future__ import annotations

import dataclasses

from xlacompare.frameworks.on_jax import strategies

EXTRA_PRODUCTS = "extra_products"
STRATEGIES = {
    name: dataclasses.replace(own, settings={**own.settings, EXTRA_PRODUCTS: 0})
    for name, own in strategies.STRATEGIES.items()
}
LACKS, unsupported = strategies.LACKS, strategies.unsupported
