"""Tables and figures: predictions next to what was measured and what the papers publish."""
