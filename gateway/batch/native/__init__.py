"""Providers' own batch APIs behind one protocol: submit, poll, results, cancel, find."""
