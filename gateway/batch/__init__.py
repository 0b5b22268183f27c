"""The batch lane: files of requests in, each line by the cheapest lane that keeps the deadline."""
