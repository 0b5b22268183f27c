"""Ops in Triton: AMD's GPUs first, NVIDIA's by the same code, no GPU under the interpreter."""
