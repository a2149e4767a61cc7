"""Below the others."""

GREETING = "grüezi"
