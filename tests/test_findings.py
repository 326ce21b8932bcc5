"""Findings: each with evidence from the record, none without."""

from __future__ import annotations

from experiments.effect_truth import Truth, more
from tests import parallel_samples as ps
from xlacompare.core import findings, parallel_analysis

JAX = ps.TRUTHS["jax", "compiled"]


def evidence(kind, truth=JAX, change=None, **options):
    """The finding of a kind in a run whose real arm (and elided for the host) was changed; None without it."""
    records = ps.run_records(truths={("jax", "compiled"): truth}, launches=3, **options)
    for record in records if change else ():
        if record["kind"] == "parallel":
            change(record)
    made = [f for f in parallel_analysis.summarise(records).findings if f.kind == kind]
    return made[0].evidence if made else None


def test_a_healthy_run_has_no_finding():
    assert ps.summary(truths={("jax", "compiled"): JAX}, launches=3).findings == []


def census(**changed):
    def change(record):
        if record["cell"]["communication"] == "real":
            record["census"] |= changed

    return change


def test_each_finding_has_its_evidence():
    def starved(record):
        record["oversubscribed"] = True

    def host(record):
        record["blocks"]["host_s"] = [0.7 * total for total in record["blocks"]["total_s"]]

    def compiling(record):
        if record["cell"]["communication"] == "real":
            record["blocks"]["compiles"] = [1] * len(record["blocks"]["total_s"])

    assert "2 ranks on 4 cores" in evidence("ranks starved of cores", change=starved)
    assert "computes during 70%" in evidence("host-bound", change=host)
    assert "during 72 of 72 timed blocks" in evidence("recompiling", change=compiling)
    assert "rank 0 computes at least 3.0" in evidence("straggler", more(JAX, waiting=2e-3))
    flat = Truth(latency=2e-3, bytes=7.9e-3)
    assert evidence("not overlapped", flat).startswith("hidden share 1%")
    assert "more than serial" in evidence("contention", more(JAX, bytes=9e-3))
    slow = Truth(latency=3e-3, bytes=1e-3, wire_latency=7e-3, wire_bytes=1e-3)
    assert "take 6.9" in evidence("latency-bound", slow) or "take 7.0" in evidence("latency-bound", slow)
    many = census(ops=[ps.op(size=64 << 10)] * 20)
    assert evidence("uncombined", change=many) == "20 times all-reduce of f32 in a step, 64.0 KiB each on average"
    wide = census(ops=[ps.op(promoted_from="bf16")])
    assert evidence("promoted on the wire", change=wide) == "1 times all-reduce: bf16 travels as f32"
    padded = census(ops=[ps.op(source="xla::all_gather")])
    assert "where all_gather was asked for" in evidence("all_gather as pad + all-reduce", change=padded)
    said = census(findings=["other opcode: all-reduce for all_gather: pad + all-reduce of the whole output"])
    assert "pad + all-reduce" in evidence("all_gather as pad + all-reduce", change=said)


def test_no_finding_without_evidence():
    """The same patterns where something is not known, or is what the strategy needs."""
    many = census(ops=[ps.op(size=64 << 10)] * 20)
    assert evidence("uncombined", change=many, strategy="tp") is None  # each product waits for its sum

    def synchronous(record):
        record["blocks"]["host_s"] = record["blocks"]["total_s"]
        record["environment"] = {"framework": {"asynchronous": False}}

    assert evidence("host-bound", change=synchronous) is None
    assert evidence("not overlapped", Truth(bytes=7.9e-3), arms=("real", "elided", "token")) is None
    assert findings.find(findings.Evidence("f", "v", "c")) == []
    assert findings.find(findings.Evidence("f", "v", "c", num_ranks=4, num_cores=2)) == []


def test_findings_name_every_kind_once():
    assert len(set(findings.KINDS)) == len(findings.KINDS)
