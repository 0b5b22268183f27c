"""The speculative-decoding server; it meets the gateway only over HTTP."""
