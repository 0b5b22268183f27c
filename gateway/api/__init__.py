"""The HTTP edge: raw ASGI for the hot surfaces, ordinary Litestar for the rest."""
