"""What measures, checks and shows; no driver and no application imports it."""
