"""`python -m backend` is `looprouter-backend`."""

from __future__ import annotations

from backend.cli import main

if __name__ == "__main__":
    main()
