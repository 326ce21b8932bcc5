"""PyTorch/XLA: eager mode, lazy tensors, and TorchDynamo with the `openxla` backend; one definition with `on_torch`."""
