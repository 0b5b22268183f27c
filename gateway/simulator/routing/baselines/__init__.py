"""Other people's routing rules, each in one file that names where it is written down."""
