"""Every mismatch between frameworks and every defect of a peer has a test that holds it.

Ids are those of the research notes on collectives: "2.n" a mismatch of section 2, "1.1.n" a defect of section 1.1. Each
has the tests that go red when ours makes the mistake, or when upstream no longer does.
"""

from __future__ import annotations

import ast
import dataclasses
import functools

import pytest

from tests import source as src

FAULTS, INPUTS, LOWERING = (f"tests/test_collectives_{name}.py" for name in ("faults", "inputs", "lowering"))
BANDWIDTH, ANALYSIS = "tests/test_collectives_bandwidth.py", "tests/test_collectives_analysis.py"
GRAPH, CAMPAIGN, WORLD = "tests/test_graph_collectives.py", "tests/test_collective_campaign.py", "tests/test_world.py"
JAX, TORCH = "tests/frameworks/test_jax_collectives.py", "tests/frameworks/test_torch_collectives.py"
TORCH_FACTS = "tests/frameworks/test_torch_collectives_facts.py"
TORCH_XLA, TORCH_XLA_PARTS = (f"tests/frameworks/test_torch_xla_collectives{part}.py" for part in ("", "_parts"))


@dataclasses.dataclass(frozen=True)
class Held:
    """What is held, and by which tests ("file::function")."""

    what: str
    tests: tuple[str, ...]


TABLE = {
    "2.1": Held("xm.all_gather is pad + all_reduce", (
        f"{LOWERING}::test_pad_and_all_reduce_for_an_all_gather_sends_twice_the_bytes",
        f"{GRAPH}::test_gather_of_torch_xla_is_a_padded_all_reduce",
        f"{TORCH_XLA}::test_graphs_of_xm",
        f"{TORCH_XLA_PARTS}::test_default_all_gather_is_a_named_variant",
        f"{TORCH_XLA}::test_the_program_that_ran_is_the_collective",
    )),
    "2.2": Held("xm.all_reduce under SPMD returns its input", (
        f"{INPUTS}::test_every_fault_is_seen",
        f"{LOWERING}::test_nothing_ran",
        f"{CAMPAIGN}::test_a_collective_that_never_ran_has_no_time",
        f"{TORCH_XLA}::test_upstream_is_silent_under_spmd",
        f"{TORCH_XLA}::test_upstream_world_of_spawn_threads_is_one",
        f"{TORCH_XLA}::test_every_value_is_right",
    )),
    "2.3": Held("the 'xla' group's barrier is empty, its work born finished, AVG missing", (
        f"{LOWERING}::test_an_empty_barrier_is_seen",
        f"{JAX}::test_a_barrier_waits_for_the_last",
        f"{TORCH_XLA}::test_upstream_process_group_means_nothing",
    )),
    "2.4": Held("fences that do not wait (sync(wait=True))", (
        f"{JAX}::test_the_fence_waits",
        f"{TORCH_FACTS}::test_fenced_time_grows_with_size",
        "tests/frameworks/test_torch_xla_runtime.py::test_the_fence_waits_and_sync_does_not",
        "tests/frameworks/test_torch_xla_runtime.py::test_self_test_rejects_sync_with_wait",
    )),
    "2.5": Held("in-process transfers compared with gloo", (
        f"{FAULTS}::test_the_transport_is_part_of_what_is_compared",
        f"{ANALYSIS}::test_unlike_transports_are_refused",
    )),
    "2.6": Held("bfloat16 promoted to float32", (
        f"{LOWERING}::test_promoted_bfloat16_sends_twice_the_bytes",
        f"{GRAPH}::test_bfloat16_that_the_compiler_widened",
    )),
    "2.7": Held("gloo's reduce_scatter is not bandwidth-optimal", (
        f"{BANDWIDTH}::test_the_caveat_of_gloo",
        "tests/test_cost_choice.py::test_a_factor_tells_nothing_unless_the_link_is_known",
        f"{TORCH}::test_bytes_of_reduce_scatter",
    )),
    "2.8": Held("removed, merged and combined collectives", (
        f"{LOWERING}::test_nothing_ran",
        f"{LOWERING}::test_merged_repeated_and_sliced",
        f"{GRAPH}::test_two_sums_merged_into_one",
        f"{JAX}::test_no_collective_is_added_around_the_asked_one",
        f"{TORCH_XLA}::test_the_program_that_ran_is_the_collective",
        f"{TORCH_XLA}::test_each_run_is_one_execution_and_none_compiles",
    )),
    "2.9": Held("all_to_all cut into slices and joined", (
        f"{LOWERING}::test_merged_repeated_and_sliced",
        f"{GRAPH}::test_all_to_all_in_chunks_is_one_buffer",
    )),
    "2.10": Held("missing sources give zeros, self edges a copy", (
        f"{FAULTS}::test_a_rank_without_a_source_has_zeros",
        f"{TORCH_FACTS}::test_a_rank_without_a_source",
        f"{TORCH_FACTS}::test_self_edge",
        f"{JAX}::test_every_cell_has_right_values_or_a_reason",
        f"{TORCH_XLA}::test_every_value_is_right",
    )),
    "2.11": Held("mean: native, or a sum and a scale", (
        f"{FAULTS}::test_a_mean_is_a_sum_that_is_divided",
        f"{LOWERING}::test_reductions",
        f"{TORCH_FACTS}::test_average_of_gloo",
        f"{TORCH_FACTS}::test_average_of_mpi",
    )),
    "2.12": Held("in-place results feed the next run and grow", (
        f"{FAULTS}::test_an_in_place_reduction_that_is_not_refilled_grows",
        f"{TORCH_FACTS}::test_in_place_results_grow_without_a_refill",
        f"{JAX}::test_in_place_feeds_the_next_run_until_refilled",
        f"{CAMPAIGN}::test_in_place_reductions_are_refilled",
    )),
    "2.13": Held("dispatch and completion are two times", (
        "tests/test_timing.py::test_stepwise_shows_the_dispatch_that_a_block_hides",
        f"{TORCH_FACTS}::test_no_work_is_left_unwaited",
        f"{JAX}::test_the_fence_waits",
    )),
    "2.14": Held("an error surfaces at another rank, or ends the process", (
        f"{TORCH_FACTS}::test_a_refusal_surfaces_elsewhere",
        f"{WORLD}::test_a_rank_that_fails",
        f"{WORLD}::test_who_is_blamed_for_deaths",
        f"{TORCH_XLA}::test_upstream_hangs_and_aborts",
        f"{TORCH_XLA_PARTS}::test_a_lane_that_fails_names_its_rank_and_goes_on",
    )),
    "2.15": Held("sizes that the ranks do not divide", (
        "tests/test_collectives_table.py::test_sizes_are_rounded_up_and_the_pad_is_told",
        f"{FAULTS}::test_pads_are_sent_and_checked",
        f"{TORCH_FACTS}::test_uneven_gather_raises",
        f"{TORCH}::test_odd_sizes",
    )),
    "2.16": Held("xm.collective_broadcast keeps a NaN of a rank that is not the root", (
        f"{FAULTS}::test_inputs_are_finite_where_a_broadcast_ignores_them",
        f"{INPUTS}::test_what_is_no_number_is_wrong",
        f"{TORCH_XLA}::test_graphs_of_xm",
    )),
    "2.17": Held("mixed pin_layout does not compile; negative axes", (
        f"{TORCH_XLA}::test_graphs_of_xm",
    )),
    "2.18": Held("token chain: an extra multiply", (f"{GRAPH}::test_token_of_torch_xla_is_no_operand",
        f"{TORCH_XLA}::test_graphs_of_xm",
    )),
    "1.1.1": Held("PARAM's torch_xla path times the dispatch", (
        "tests/test_fence.py::test_a_clock_without_synchronisation_is_rejected",
    )),
    "1.1.2": Held("DeepSpeed never waits for asynchronous work", (
        f"{BANDWIDTH}::test_a_rate_above_the_machines_is_refused",
        f"{TORCH_FACTS}::test_no_work_is_left_unwaited",
        "tests/test_fence.py::test_a_fence_that_waits_for_nothing_of_the_steps_is_rejected",
    )),
    "1.1.3": Held("DeepSpeed on a CPU prints no number", (
        f"{CAMPAIGN}::test_every_collective",
        f"{TORCH}::test_the_table_is_whole",
    )),
    "1.1.4": Held("averaged rates: +50%", (
        f"{BANDWIDTH}::test_the_mean_of_rates_is_not_what_is_reported",
        f"{ANALYSIS}::test_rates_are_never_averaged",
    )),
    "1.1.5": Held("an outlier filter deletes stragglers", (
        f"{BANDWIDTH}::test_a_straggler_counts",
        f"{ANALYSIS}::test_slow_operations_stay",
    )),
    "1.1.6": Held("percentiles over ranks are no uncertainty", (
        f"{ANALYSIS}::test_percentiles_are_not_uncertainty",
        f"{ANALYSIS}::test_percentiles_are_of_iterations",
        "tests/test_cost_model.py::test_pooling_launches_would_not_cover",
    )),
    "1.1.7": Held("more ranks than cores, and nothing warns", (
        f"{CAMPAIGN}::test_more_ranks_than_cores",
        "tests/test_collectives_report.py::test_more_ranks_than_cores_is_said",
    )),
    "1.1.8": Held("a count that is a float", (
        f"{FAULTS}::test_counts_are_whole_numbers",
    )),
    "1.1.9": Held("101 runs divided by 100", (
        f"{FAULTS}::test_runs_divide_what_was_run",
        f"{ANALYSIS}::test_a_block_is_divided_by_its_operations",
        f"{LOWERING}::test_loops_multiply_the_bytes",
    )),
    "1.1.10": Held("an all_reduce for one platform only", (
        f"{JAX}::test_no_collective_is_added_around_the_asked_one",
        f"{JAX}::test_the_parent_knows_what_is_unsupported",
    )),
    "1.1.11": Held("booleans and not-a-number as strings", (
        f"{FAULTS}::test_records_hold_json_types",
        "tests/test_importers.py::test_nccl_json_quirks",
        "tests/test_nccl_format.py::test_json_is_json",
    )),
}  # fmt: skip
IDS = [*(f"2.{number}" for number in range(1, 19)), *(f"1.1.{number}" for number in range(1, 12))]


@functools.cache
def functions_of(path: str) -> dict[str, ast.FunctionDef]:
    """Test functions of a file by name; none where there is no file."""
    file = src.ROOT / path
    if not file.exists():
        return {}
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test")}


def never_runs(node: ast.FunctionDef) -> bool:
    """Marked skip or xfail without a condition, or without any statement."""
    marks = {ast.unparse(each.func if isinstance(each, ast.Call) else each) for each in node.decorator_list}
    only_words = all(
        isinstance(each, ast.Pass) or isinstance(getattr(each, "value", 0), ast.Constant) for each in node.body
    )
    return bool(marks & {"pytest.mark.skip", "pytest.mark.xfail"}) or only_words


def problem(name: str) -> str | None:
    path, _, function = name.partition("::")
    found = functions_of(path).get(function)
    if found is None:
        return f"there is no {name}"
    return f"{name} never runs" if never_runs(found) else None


def test_the_table_is_whole():
    assert list(TABLE) == IDS


@pytest.mark.parametrize("number", IDS)
def test_each_is_held(number):
    assert TABLE[number].tests, f"no test holds {number}: {TABLE[number].what}"
    problems = [said for name in TABLE[number].tests if (said := problem(name))]
    assert not problems, "\n".join(problems)


def test_a_test_that_is_not_there_is_noticed():
    assert problem(f"{FAULTS}::test_counts_are_whole_numbers") is None
    assert problem(f"{FAULTS}::test_nothing") == f"there is no {FAULTS}::test_nothing"
    assert problem("tests/test_no_file.py::test_nothing") is not None
    for text in ("@pytest.mark.skip\ndef test_a():\n    f()", "def test_a():\n    '''Words.'''", "def test_a(): pass"):
        assert never_runs(ast.parse(text).body[0])
