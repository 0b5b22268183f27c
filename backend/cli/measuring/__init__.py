"""Measuring a server from outside: prompts, load, stamps at the socket, statistics, reports."""
