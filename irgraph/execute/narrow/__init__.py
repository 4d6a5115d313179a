"""Narrow formats computed with torch: rows, quantised ops, and what the formats hold."""
