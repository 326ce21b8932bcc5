"""Worker processes: starting, asking, ending them; what one launch does. No framework is imported in this process."""
