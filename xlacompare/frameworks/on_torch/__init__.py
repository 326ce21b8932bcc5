"""Native PyTorch: eager, aot_eager and Inductor, on the CPU or on one CUDA device."""
