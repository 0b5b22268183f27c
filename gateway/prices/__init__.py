"""Tokens to money: integer price rows, compiled off the request path, and exact bills from them."""
