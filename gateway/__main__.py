"""`python -m gateway` is the same as `looprouter`."""

from gateway.cli import main

main()
