"""What people read: tables, figures, pages, and the numbers of the papers beside ours."""
