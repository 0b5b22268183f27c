"""What is known of every endpoint at this moment, learned from the requests themselves."""
