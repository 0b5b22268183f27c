"""What is publicly known of providers and models. Facts not known for sure are left unknown."""
