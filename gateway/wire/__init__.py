"""The dialects on the wire, both directions. A leaf: imports msgspec and nothing of ours."""
