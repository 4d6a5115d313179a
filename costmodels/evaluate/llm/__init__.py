"""Published training steps of large language models, rebuilt from their sizes and predicted."""
