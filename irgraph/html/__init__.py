"""Reports and fragments in HTML: a page that opens without network, and tables for notebooks."""
