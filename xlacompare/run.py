"""One model's training step through several frameworks: which is slower, by how much, why.

  python -m xlacompare.run --framework=jax,torch_xla,torch --workload=transformer

With --collective, collectives are measured instead of steps:

  python -m xlacompare.run --framework=jax,torch --collective=all_reduce

With --strategy, training steps over several ranks, with their communication taken out and put back in several ways:

  python -m xlacompare.run --framework=jax,torch --strategy=dp --workload=transformer --num_devices=2

Afterwards `python -m xlacompare.report FOLDER` shows the records again.

Exit codes: 0 all cells measured; 1 a cell crashed, hung or ran out of memory; 2 bad input; 3 a gate failed;
130 interrupted. Records are in the output folder in every case.
"""

from xlacompare import entry

if __name__ == "__main__":
    entry.main("xlacompare.run_steps")
