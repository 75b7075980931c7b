"""Parts of the report as static HTML, a file each, which the page and notebooks share."""
