"""jax over ranks with planted products: XLACOMPARE_FRAMEWORKS=jax=experiments.planted_ranks_jax."""
