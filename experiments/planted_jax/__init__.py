"""The jax adapter with planted work: XLACOMPARE_FRAMEWORKS=jax=experiments.planted_jax."""
