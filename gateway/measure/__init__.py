"""Stamps to metrics, request log rows and structured logs."""
