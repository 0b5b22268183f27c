"""The speculative-decoding server; it meets the gateway only over HTTP."""

__distribution__ = "looprouter"  # whose package this is; others publish one of this name
