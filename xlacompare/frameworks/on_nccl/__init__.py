"""NCCL without a framework: the floor under what torch and JAX do with it. Collectives only, no models."""
