"""What stands around the ops: compiling ahead of time, bounds, and measurements on a GPU."""
