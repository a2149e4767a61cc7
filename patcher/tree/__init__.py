"""What is read from a syntax tree, and what is done to one; nothing here knows what a patch is."""
