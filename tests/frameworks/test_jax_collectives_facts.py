"""What XLA:CPU and mpi4jax do to collectives, each as the smallest program that shows it.

Numbers are those of ../shared/research/collectives.md, section 2. A test named `upstream_` goes red when upstream mends
what `transports` refuses or works around: then the refusal goes.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import subprocess
import sys
from typing import Any

import jax
import pytest
from jax import lax

from tests.frameworks import jax_ranks
from xlacompare.frameworks.on_jax import transports

COLLECTIVE = re.compile(r" = (?P<result>.*?) (?P<opcode>all-\w+(?:-\w+)?|reduce-scatter|collective-\w+)\(")


@functools.cache
def facts() -> dict[str, Any]:
    """Program texts, values and errors from one process with two virtual devices."""
    return jax_ranks.start("inprocess", 2, {"do": "facts"})[0]


def found(name: str) -> list[tuple[str, str]]:
    """(opcode, result type) of the collectives in a program."""
    matches = [COLLECTIVE.search(line) for line in facts()["texts"][name].splitlines()]
    return [(match["opcode"], re.sub(r"\{[\d,]*\}", "", match["result"])) for match in matches if match]


@pytest.mark.parametrize("name", ["sum of a constant", "sum of one", "unused"])
def test_8_needless_collectives_vanish(name: str) -> None:
    assert found(name) == []


def test_8_equal_collectives_become_one() -> None:
    assert found("equal") == [("all-reduce", "f32[8]")]


def test_8_different_collectives_become_one_variadic() -> None:
    assert found("different") == [("all-reduce", "(f32[8], f32[8])")]


def test_8_a_slice_of_a_sum_stays_behind_it() -> None:
    assert found("slice of a sum") == [("all-reduce", "f32[8]")]


@pytest.mark.parametrize(
    ("name", "result"),
    [("psum", "f32[8]"), ("all_gather", "f32[16]"), ("psum_scatter", "f32[4]"), ("ppermute", "f32[8]")],
)
def test_6_bfloat16_travels_as_float32(name: str, result: str) -> None:
    """XLA:CPU widens bfloat16 in every collective, also where nothing is added: twice the bytes. float16 stays."""
    assert [type_ for _, type_ in found(f"{name} of bfloat16")] == [result]
    assert [type_ for _, type_ in found(f"{name} of float16")] == [result.replace("f32", "f16")]


def test_10_missing_sources_give_zeros_and_self_edges_copy() -> None:
    assert facts()["values"]["open chain"] == [[0, 0], [1, 2]]
    assert facts()["values"]["self edge"] == [[0, 0], [3, 4]]


def test_22_a_consumed_zip_permutes_nothing() -> None:
    """jax-ml/jax#1703: no error, all zeros. Requests hold tuples."""
    assert facts()["values"]["consumed zip"] == [[0, 0], [0, 0]]


def test_11_pmean_divides_after_the_sum() -> None:
    assert facts()["values"]["pmean"] == facts()["values"]["sum over n"] == [[2, 3], [2, 3]]


def test_16_broadcast_drops_nan_of_other_ranks() -> None:
    """A multiplication by 0 keeps it."""
    assert facts()["values"]["broadcast over NaN"] == [[1, 2], [1, 2]]
    assert facts()["values"]["multiplied over NaN"] == [["nan", "nan"], ["nan", "nan"]]


def test_untiled_all_gather_adds_an_axis() -> None:
    assert facts()["shapes"]["tiled"] == [4, 4]
    assert facts()["shapes"]["untiled"] == [2, 2, 4]
    assert facts()["shapes"]["negative axis of all_gather"] == [2, 8]


def test_15_indivisible_shapes_raise() -> None:
    assert "must be divisible" in facts()["errors"]["psum_scatter of 9"]
    assert "has to be divisible" in facts()["errors"]["all_to_all of 9"]
    assert "not a multiple" in facts()["errors"]["request for 9"], "ours, before JAX is asked"


@pytest.mark.parametrize("name", ["psum_scatter", "all_to_all"])
def test_17_upstream_negative_axes_fail(name: str) -> None:
    """jax-ml/jax#19720."""
    assert facts()["errors"][f"negative axis of {name}"]


def test_upstream_pbroadcast_has_no_cpu_lowering() -> None:
    assert "pbroadcast" in facts()["errors"]["pbroadcast"]
    assert "cpu" in facts()["errors"]["pbroadcast"]


def test_upstream_pbroadcast_reads_a_name_letter_by_letter() -> None:
    """Why `programs` passes a tuple of one name."""
    assert "unbound axis name: r" in facts()["errors"]["pbroadcast along a name"]


def test_broadcast_on_a_gpu_is_one() -> None:
    assert "stablehlo.collective_broadcast" in facts()["texts"]["broadcast for a GPU"]
    assert "dense<[[1, 0]]>" in facts()["texts"]["broadcast for a GPU"], "the root comes first"


def test_upstream_in_place_copies_after_the_collective() -> None:
    """XLA:CPU reduces into a temporary and copies it over the donated input."""
    assert re.search(r"ROOT %\S+ = \S+ copy\(%psum", facts()["texts"]["donated psum"])


def test_upstream_more_than_32_in_flight_deadlock() -> None:
    """One process, two virtual devices, no wait in the loop (jaxlib 0.10.2): why `steps` waits. No issue was found."""
    flags = "--xla_cpu_collective_call_terminate_timeout_seconds=3"
    work = {"do": "flood", "in_flight": 200, "seconds": 8}
    with pytest.raises(AssertionError, match="Termination timeout"):
        jax_ranks.start("inprocess", 2, work, environment={"XLA_FLAGS": flags})
    assert jax_ranks.start("inprocess", 2, {**work, "in_flight": 32, "seconds": 3})[0]["runs"] > 100


def test_upstream_no_scatter_of_a_maximum() -> None:
    assert not [name for name in dir(lax) if re.fullmatch(r"p(max|min)_scatter", name)]


def test_upstream_own_mpi_needs_a_wrapper_library() -> None:
    """JAX's own MPI collectives load MPIwrapper's library, and end the process without MPITRAMPOLINE_LIB."""
    code = "import jaxlib._jax as j; j.make_mpi_collectives().Init()"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert child.returncode != 0
    assert "MPITRAMPOLINE_LIB is not set" in child.stdout + child.stderr
    assert "MPITRAMPOLINE_LIB" in transports.TRANSPORTS["mpi"].definition


@functools.cache
def mpi_facts() -> dict[str, Any]:
    """What mpi4jax says, alone in an MPI world of one."""
    if importlib.util.find_spec("mpi4jax") is None:
        pytest.skip("mpi4jax is not installed")
    return jax_ranks.start("mpi", 1, {"do": "mpi_facts"})[0]


def test_upstream_mpi4jax_has_no_reduce_scatter() -> None:
    assert not [name for name in mpi_facts()["names"] if "scatter" in name and "reduce" in name]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_upstream_mpi4jax_has_no_16_bit_floats(dtype: str) -> None:
    assert f"Unknown MPI type for dtype {dtype}" in mpi_facts()["errors"][dtype]


def test_upstream_mpi4jax_aliases_nothing() -> None:
    assert "output_to_operand_aliasing" not in mpi_facts()["donated"]
    assert re.search(r"copy\(", mpi_facts()["donated"]), "the donated input is overwritten by a copy"


def test_upstream_compiled_forgets_the_token() -> None:
    """The second call of an ahead-of-time program with ordered effects (jax 0.10.2): why `mpi` calls the jitted one."""
    assert "supplied 1 arguments but compiled program expected 2" in mpi_facts()["errors"]["second call"]


def test_the_versions_that_these_facts_are_of() -> None:
    """Only a reminder: with another jax, read this file again."""
    assert jax.__version__.startswith("0.10.")
