"""How the tasks of a step are built: from charges one by one, or many at once."""
