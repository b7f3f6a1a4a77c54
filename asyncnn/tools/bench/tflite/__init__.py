"""Model files that are measured: found in a folder, or made."""
