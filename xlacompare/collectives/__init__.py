"""Collectives without a framework: what each moves, what must come out, what it should cost."""
