"""Tables and figures: what the models said, next to what was measured and what the papers publish."""
