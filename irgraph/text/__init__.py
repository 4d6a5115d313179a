"""Reading and writing ``model.ir``, and the diagnostics that every front end shares."""
