"""For every test of the backend: one thread, and nothing is looked up on the network."""

from __future__ import annotations

import os

os.environ.setdefault("USE_HUB_KERNELS", "0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

torch.set_num_threads(1)
