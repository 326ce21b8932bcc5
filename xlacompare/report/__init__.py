"""From an analysed run to text, JSON and CSV. Reads `core.results` and nothing else."""
