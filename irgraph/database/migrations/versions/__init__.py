"""One file a version. A version that was released is never changed: another one follows it."""
