"""From a project folder to `build/`: what stands in it, whether it is current, and how it is written."""
