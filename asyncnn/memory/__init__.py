"""Floor 2: memory pools and how they are mapped. Knows nothing of models."""
