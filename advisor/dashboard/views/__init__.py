"""What a page shows, built from what is stored: pure functions, one module for each part of a page."""
