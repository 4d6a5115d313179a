"""Device sheets, one JSON file for each variant of a card, and how they are found."""
