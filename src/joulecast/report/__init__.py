"""What people read: tables, figures, pages, and the papers' numbers next to ours."""
