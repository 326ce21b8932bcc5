"""Outputs of other collective benchmarks as records, so that their figures stand beside ours, marked as imported."""
