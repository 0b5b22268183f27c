"""Pure statistics. A leaf: imports numpy and nothing of ours; clock and randomness are arguments."""
