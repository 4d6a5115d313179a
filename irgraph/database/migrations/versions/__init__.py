"""One file per version. A released version is never changed: a new one follows it."""
