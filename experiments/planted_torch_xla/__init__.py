"""The torch_xla adapter with planted work: XLACOMPARE_FRAMEWORKS=torch_xla=experiments.planted_torch_xla."""
