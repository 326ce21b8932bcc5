"""Framework-free core: measurement, statistics, records, the gate. Needs the standard library, NumPy and SciPy only."""
