"""Training over ranks on a link of known rate, and a planted change of that rate: the public command in namespaces."""

from __future__ import annotations

import pytest

from experiments import on_link
from xlacompare.core import record
from xlacompare.launch import link as links

needs_link = pytest.mark.skipif(links.why_not() is not None, reason=f"needs a link: {links.why_not()}")


@needs_link
def test_a_planted_rate_changes_what_communicates(monkeypatch, tmp_path):
    monkeypatch.setenv("XLACOMPARE_FRAMEWORKS", "standin=tests.standin")
    arguments = [
        *("--framework=standin", "--strategy=dp", "--compiler=compiled", "--communication=real,elided,alone"),
        *("--num_devices=2", "--batch_size=8", "--launches=1", "--cell_s=0.1", "--min_block_s=0.01"),
        "--planted=planted_link=40mbit",
    ]
    with links.link(2, "200mbit") as link:
        on_link.run(link, arguments, tmp_path, 200, share_cores=True)
    made = [r for r in record.read(tmp_path).records if r["kind"] == "parallel"]
    assert {(r["status"], r["reason"], r["launcher"]) for r in made} == {("ok", "", "torchrun")}
    assert all(r["ranks"][0]["pid"] != r["ranks"][1]["pid"] for r in made)
    fastest = {}
    for r in made:
        blocks = zip(r["blocks"]["total_s"], r["blocks"]["n"], strict=True)
        fastest[r["cell"]["communication"], r["cell"]["label"]] = min(total / n for total, n in blocks)
    slow = "planted:planted_link=40mbit"
    # A fifth of the rate; what the bursts let pass does not wait.
    for arm in ("real", "alone"):
        assert 2.5 < fastest[arm, slow] / fastest[arm, "matched"] < 6
    nbytes = made[0]["census"]["ops"][0]["operand_bytes"]
    assert fastest["alone", "matched"] > 2 * nbytes * 8 / 200e6, "through rank 0: up once, down twice"
    assert fastest["elided", slow] < fastest["alone", "matched"], "no byte waits"
