"""A seeded world with a virtual clock, in which routers race: the product's own, and others'."""
