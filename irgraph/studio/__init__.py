"""The studio: a page on this machine where one edits a step by looking (``irgraph studio``)."""
