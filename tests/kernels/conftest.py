"""For every test of the kernels: one thread of torch's, so that timings and forks are quiet."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
