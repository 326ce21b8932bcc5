"""xlacompare: the same models through JAX, PyTorch/XLA and native PyTorch, timed with an uncertainty on every number.

core        measurement, statistics, records, the gate        standard library, NumPy, SciPy
workloads   models and data as NumPy, and their float64 oracle
frameworks  one folder per framework, the same file names in each
launch      worker processes, cores, deadlines
report      records to terminal, JSON, CSV
run, doctor the commands: `python -m xlacompare.run`, `python -m xlacompare.doctor`
"""

__version__ = "0.1.0"
