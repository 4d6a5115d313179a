"""Records a user's step: its traces and times, in one folder."""
