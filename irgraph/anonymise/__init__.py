"""Takes the names of a program out of traces and models, so that they can be shared."""
