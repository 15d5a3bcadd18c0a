"""What pages are made of: HTML elements, tables, and charts as data for the page's script."""
