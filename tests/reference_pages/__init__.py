"""Makes the pages of the documentation that come from the code: one module a page."""
