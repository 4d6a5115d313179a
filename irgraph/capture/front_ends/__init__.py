"""The front ends, one file each: they recognise and lower one kind of file."""
