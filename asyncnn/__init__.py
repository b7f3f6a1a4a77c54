"""asyncnn."""
