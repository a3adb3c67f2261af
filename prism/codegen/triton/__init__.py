"""The Triton backend: kernels for NVIDIA GPUs."""
