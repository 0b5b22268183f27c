"""One op, one name: a torch reference beside each Triton kernel."""
