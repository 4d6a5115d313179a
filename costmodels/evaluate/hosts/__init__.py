"""Host tables on machines that did not make them."""
