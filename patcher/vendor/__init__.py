"""Another upstream: fetched, compared, judged by every series, and taken in."""
