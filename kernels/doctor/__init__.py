"""Which ops may serve on this GPU: each is tried against torch, in a process of its own."""
