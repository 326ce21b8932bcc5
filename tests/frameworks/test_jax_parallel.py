"""Training over JAX ranks: the same numbers as one device, programs that do what their arm says, faults that are seen.
One world per number of ranks and transport serves all cases.
"""

from __future__ import annotations

import collections
import functools
from typing import Any

import pytest

from tests.frameworks import jax_ranks
from xlacompare.core import errors
from xlacompare.frameworks.on_jax import strategies
from xlacompare.parallel import arms, request, table

EXPLICIT = ("dp", "fsdp", "tp")  # strategies that ask for their collectives
TRAINING = tuple(arm for arm in arms.ARMS if arm not in arms.WITHOUT_COMPUTE)
DEADLINE_S = 600  # of a world, which takes a tenth of it where nobody else computes
Case = dict[str, Any]


def case(strategy: str, variant: str, **more: str) -> Case:
    return {"strategy": strategy, "variant": variant, **more}


def quick(strategy: str, variant: str, **more: str) -> Case:
    """In the arm that compiles soonest."""
    return case(strategy, variant, compiler="opt0" if variant.startswith("mlp") else "compiled", **more)


def exact_cases(size: int) -> dict[str, Case]:
    """What must have the numbers of one device."""
    found = {}
    for strategy in strategies.STRATEGIES:
        found[f"{strategy}/mlp"] = quick(strategy, "mlp of 32", dtype="float64")
    if size == 4:
        found["fsdp/transformer"] = quick("fsdp", "transformer of 1 layer")
        return found
    found["tp/serial"] = quick("tp", "transformer of 1 layer", communication="serial")
    found["fsdp/padded"] = quick("fsdp", "mlp of odd layers", dtype="float64")
    found["dp/convnet"] = quick("dp", "convnet of 2 stages", dtype="float64")
    found["tp/bfloat16"] = quick("tp", "mlp of 32", dtype="bfloat16")
    return found


FAULTS = {
    "sum for mean": quick("dp", "mlp with adamw", fault="sum for mean"),
    "leaf forgotten": quick("dp", "mlp of 32", fault="leaf forgotten"),
    "shard twice": quick("dp", "mlp of 32", fault="shard twice"),
    "norm of one rank": quick("dp", "convnet of 2 stages", fault="norm of one rank"),
    "scatter reversed": quick("fsdp", "mlp of 32", fault="scatter reversed"),
    "padding in front": quick("fsdp", "mlp of odd layers", fault="padding in front"),
    "bias on every rank": quick("tp", "mlp of 32", fault="bias on every rank"),
    "columns for heads": quick("tp", "transformer of 1 layer", fault="columns for heads"),
    "no sum backward": quick("tp", "transformer of 1 layer", fault="no sum backward"),
}


def arm_cases(strategy: str, compiler: str = "compiled") -> dict[str, Case]:
    """Every arm of a strategy; `real` first, whose collectives are the schedule of the last two."""
    return {
        f"{strategy}/{compiler}/{arm}": case(strategy, "mlp of 32", communication=arm, compiler=compiler)
        for arm in arms.ARMS
    }


def gloo_cases() -> dict[str, Case]:
    """Between processes, also op by op."""
    eager = {f"{strategy}/eager/real": case(strategy, "mlp of 32", compiler="eager") for strategy in ("dp", "tp")}
    return arm_cases("fsdp") | arm_cases("fsdp", "eager") | eager


# World -> its cases; several, so that none takes long.
CASES: dict[tuple[str, int, str], dict[str, Case]] = {
    ("inprocess", 2, "exact"): exact_cases(2),
    ("inprocess", 4, "exact"): exact_cases(4),
    ("inprocess", 2, "faults"): FAULTS,
    ("inprocess", 2, "arms"): arm_cases("dp") | arm_cases("fsdp") | arm_cases("tp"),
    ("gloo", 2, "arms"): gloo_cases(),
}


@functools.cache
def answers(transport: str, size: int, group: str) -> dict[str, Any]:
    """What the ranks of a world said, of rank 0; the others must say the same of gate and programs."""
    cases = CASES[transport, size, group]
    told = [a["cases"] for a in jax_ranks.start(transport, size, {"do": "parallel", "cases": cases}, DEADLINE_S)]
    assert all(list(one) == list(cases) for one in told)
    for other in told[1:]:
        for name in cases:
            assert other[name]["collectives"] == told[0][name]["collectives"]
            assert other[name].get("passed") == told[0][name].get("passed")
    return told[0]


@pytest.mark.parametrize(("size", "name"), [(size, name) for size in (2, 4) for name in exact_cases(size)])
def test_ranks_have_the_numbers_of_one_device(size: int, name: str) -> None:
    found = answers("inprocess", size, "exact")[name]
    assert found["passed"], found["message"]
    assert found["kept"], "gradients() and reset() leave the initial state, bit by bit"


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_seen(name: str) -> None:
    assert answers("inprocess", 2, "faults")[name]["message"].startswith("gate failed"), name


def test_a_sum_for_a_mean_is_seen_by_the_gradients() -> None:
    """adamw divides a gradient by its size: updates alone would not show it."""
    assert "gradient" in answers("inprocess", 2, "faults")["sum for mean"]["message"]


def test_gloo_has_the_numbers_of_one_device() -> None:
    """Compiled as one program, and op by op with a program per collective."""
    found = {name: item for name, item in answers("gloo", 2, "arms").items() if name.endswith(("/real", "/serial"))}
    assert {name.partition("/serial")[0].partition("/real")[0] for name in found} == {
        *("fsdp/compiled", "fsdp/eager", "dp/eager", "tp/eager")
    }
    assert {name: item["message"] for name, item in found.items() if not item["passed"]} == {}


def products(program: dict[str, Any]) -> collections.Counter:
    """Product -> times run."""
    found: collections.Counter = collections.Counter()
    for item in program["heavy"]:
        found[item["opcode"], str(item["form"])] += item["count"]
    return found


WORLDS = [
    *(("inprocess", f"{strategy}/compiled") for strategy in EXPLICIT),
    *(("gloo", f"fsdp/{compiler}") for compiler in ("compiled", "eager")),
]


@pytest.mark.parametrize(("transport", "strategy"), WORLDS)
@pytest.mark.parametrize("arm", TRAINING)
def test_every_arm_does_the_products_of_real(transport: str, strategy: str, arm: str) -> None:
    found = answers(transport, 2, "arms")
    real, other = found[f"{strategy}/real"], found[f"{strategy}/{arm}"]
    assert products(other["program"]) == products(real["program"])
    assert other["program"]["flops"] == real["work"]["flops"] > 0


@pytest.mark.parametrize(("transport", "strategy"), WORLDS)
@pytest.mark.parametrize("arm", ["elided", "token"])
def test_arms_without_exact_values_stay_finite_and_train(transport: str, strategy: str, arm: str) -> None:
    found = answers(transport, 2, "arms")[f"{strategy}/{arm}"]
    assert found["finite"]
    assert found["moved"]


def brief(found: dict[str, Any]) -> list[tuple[Any, ...]]:
    keys = ("opcode", "dtype", "operand_bytes", "result_bytes", "operands", "reduction", "groups", "pairs")
    return [tuple(str(item[key]) for key in keys) for item in found["collectives"]]


@pytest.mark.parametrize(("transport", "strategy"), WORLDS)
def test_collectives_are_what_the_arm_says(transport: str, strategy: str) -> None:
    found = {arm: answers(transport, 2, "arms")[f"{strategy}/{arm}"] for arm in arms.ARMS}
    real = found["real"]["collectives"]
    assert real
    assert not found["elided"]["collectives"]
    assert sorted(brief(found["serial"])) == sorted(brief(found["real"]))
    assert brief(found["alone"]) == brief(found["real"])
    for arm in arms.WITHOUT_COMPUTE:
        if "parsed" in found[arm]:  # a program per collective
            assert brief({"collectives": found[arm]["parsed"]}) == brief(found[arm])
    for arm in ("token", "alone_token"):
        small = found[arm]["collectives"]
        assert collections.Counter((item["opcode"], item["operands"]) for item in small) == collections.Counter(
            (item["opcode"], item["operands"]) for item in real
        )
        for item in small:
            cut = 2 if item["opcode"] == "reduce-scatter" else 1  # an element for each of two ranks
            assert item["operand_bytes"] == 4 * cut * item["operands"], (arm, item)
    for arm in arms.WITHOUT_COMPUTE:
        assert found[arm]["program"]["flops"] == 0


def test_what_a_strategy_sends() -> None:
    """From the shapes: dp every gradient; fsdp every parameter, half here and half there; tp activations."""
    found = answers("inprocess", 2, "arms")
    total = 4 * sum(int(count) for count in (64 * 512 + 512, 512 * 512 + 512, 512 * 10 + 10))
    sent: dict[tuple[str, str], int] = collections.Counter()
    for strategy in EXPLICIT:
        for item in found[f"{strategy}/compiled/real"]["collectives"]:
            sent[strategy, item["opcode"]] += item["operand_bytes"]
    assert sent == {
        ("dp", "all-reduce"): total,
        ("fsdp", "all-gather"): total // 2,
        ("fsdp", "reduce-scatter"): total,
        ("tp", "all-reduce"): 4 * 32 * 512,
    }


def asked(strategy: str, **more: Any) -> request.Request:
    return request.Request(strategy, more.get("communication", "real"), more.get("compiler", "compiled"), "float32", 2)


@pytest.mark.parametrize(
    ("given", "place", "workload", "says"),
    [
        (asked("dp"), ("mpi", "process"), "mlp", "one mesh"),
        (asked("dp"), ("gloo", "spmd"), "mlp", "mode 'spmd'"),
        (asked("dp", compiler="eager"), ("inprocess", "spmd"), "mlp", "disable_jit"),
        (asked("dp", compiler="lazy"), ("gloo", "process"), "mlp", "'lazy'"),
        (asked("dp", communication="serial"), ("gloo", "process"), "convnet", "batch norm"),
        (asked("tp"), ("gloo", "process"), "convnet", "not for convnet"),
        (asked("dp_auto", communication="elided"), ("gloo", "process"), "mlp", "no collective yet"),
        (asked("dp_auto", compiler="eager"), ("gloo", "process"), "mlp", "'eager'"),
    ],
)
def test_what_cannot_be_done_has_a_reason(given: Any, place: tuple[str, str], workload: str, says: str) -> None:
    assert says in (strategies.unsupported(given, *place, workload) or "")


def test_the_table_is_whole() -> None:
    assert set(strategies.STRATEGIES) | set(strategies.LACKS) <= set(table.STRATEGIES)
    for entry in strategies.STRATEGIES.values():
        assert set(entry.communication) | set(table.get(entry.name).refused) == set(arms.ARMS)
        for transport, modes in entry.modes.items():
            given = asked(entry.name, compiler=next(iter(entry.compilers)))
            assert strategies.unsupported(given, transport, modes[0], "mlp") is None
    with pytest.raises(errors.BadInputError, match="known"):
        strategies.unsupported(asked("dp", communication="loud"), "gloo", "process", "mlp")


@functools.cache
def facts() -> dict[str, Any]:
    """What JAX and XLA:CPU do; see `jax_parallel_facts`."""
    return jax_ranks.start("inprocess", 2, {"do": "parallel_facts"}, DEADLINE_S)[0]


def test_upstream_op_by_op_over_a_mesh_is_unusable() -> None:
    """Refused as `strategies.NO_EAGER`: red when a step without jit costs no more than its dispatches."""
    assert facts()["op_by_op_s"] > 20 * facts()["jitted_s"]


def test_upstream_barriers_are_gone_before_the_schedule() -> None:
    """Hence ties through data: red when XLA:CPU keeps barriers, which then do alone."""
    assert "opt-barrier" not in facts()["texts"]["barrier"]


def test_a_sort_by_position_stays_in_the_program() -> None:
    """It moves nothing; were it gone, `serial` would be `real`. A sort of one element does go."""
    assert " sort(" in facts()["texts"]["sort by position"]
    assert " sort(" not in facts()["texts"]["sort of one"]


def test_checked_types_make_autodiff_communicate() -> None:
    """Hence check_vma=False: a strategy's collectives are those that it asks for."""
    assert "all-reduce" in facts()["texts"]["checked"]
    assert "all-reduce" not in facts()["texts"]["unchecked"]
