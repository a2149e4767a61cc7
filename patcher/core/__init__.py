"""From bytes and a series to bytes and verdicts.  Pure: no paths, no printing, no processes."""
