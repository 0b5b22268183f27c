"""One table of cases an op, in a file of its own name; `table.py` puts them together."""
