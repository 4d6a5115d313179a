"""What the events of a Kineto trace mean: who called what, launched what and waited for what."""
