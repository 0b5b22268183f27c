"""One op, one name: a torch reference beside each Triton kernel."""

__distribution__ = "looprouter"  # whose package this is; others publish one of this name
