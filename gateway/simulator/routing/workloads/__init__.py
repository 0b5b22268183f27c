"""Requests to route: public traces where they are at hand, generators with their statistics."""
