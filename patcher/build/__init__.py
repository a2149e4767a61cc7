"""From a project folder to `build/`: what is in it, whether it is current, how it is written."""
