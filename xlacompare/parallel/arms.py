"""Communication arms: the same step with its collectives as they are, without them, and other ways between (DESIGN 2).

An arm changes what the collectives of a step do, and nothing else: shapes, dtypes and data flow stay, so that the
compute of the step is the same. Differences of block times between arms are the effects of `core.effects`.
"""

from __future__ import annotations

DEFINITIONS: dict[str, str] = {
    "real": "the step as a user would write it: every collective moves its bytes, and may overlap with compute",
    "elided": (
        "no rank talks: each collective becomes a local operation of the same shapes and dtypes (all_reduce: the "
        "operand; all_gather: a tile of it; reduce_scatter: a slice; all_to_all and ppermute: the operand)"
    ),
    "token": "each collective moves one element per operand, and does the local operation of `elided` beside it",
    "serial": "as `real`, but a collective starts when all compute before it is done, and all compute after it waits",
    "alone": "the collectives of `real`'s own census (as the compiler combined them), in order, without any compute",
    "alone_token": "as `alone`, each collective on one element: the part of the wire that is no bytes",
}
ARMS = tuple(DEFINITIONS)
# Arms whose values are those of `real`, and go through the same gate. The others are shown to be finite, to do the same
# products, and to communicate what their definition says.
EXACT = ("real", "serial")
# Arms that run no training step: there is no loss and no state.
WITHOUT_COMPUTE = ("alone", "alone_token")
