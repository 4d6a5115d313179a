"""Answers of an emulated card to queries of its properties."""
