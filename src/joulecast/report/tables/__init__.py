"""Tables: predictions next to measurements, and next to published numbers."""
