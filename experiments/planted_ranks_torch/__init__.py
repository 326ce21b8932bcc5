"""torch over ranks with planted products: XLACOMPARE_FRAMEWORKS=torch=experiments.planted_ranks_torch."""
