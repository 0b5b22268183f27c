"""Batch jobs in seeded worlds: the product's planner against one that knows everything."""
