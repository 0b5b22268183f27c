"""One API key in front of many measured LLM endpoints."""

__version__ = "0.1.0"
