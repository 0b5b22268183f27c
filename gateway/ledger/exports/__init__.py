"""What providers say they charged: one module a format of their usage and cost exports."""
