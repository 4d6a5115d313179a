"""Shipped host tables, one file each, and how they are made from published sources."""
