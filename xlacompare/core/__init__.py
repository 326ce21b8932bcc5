"""Framework-free core: measurement, statistics, records, the gate. Imports only the standard library, NumPy and SciPy."""
