"""What the scripts call."""
