"""How embedding tables are looked up: distributions of indices, and what a cache holds of them."""
