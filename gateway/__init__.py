"""One API key in front of many measured LLM endpoints."""

__version__ = "0.1.0"
__distribution__ = "looprouter"  # whose package this is; others publish one of this name
