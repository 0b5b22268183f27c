"""Pure statistics: imports numpy and nothing of ours; clock and randomness are arguments."""
