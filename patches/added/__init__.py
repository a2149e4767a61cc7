"""Code that patches insert: real Python, linted and tested here, read as text by `apply`."""
