"""Floor 7: tools that measure, check and show; applications import none."""
