"""Files that hold data and never code."""
