"""Steps in the forms of other tools: Chakra traces, graphs of Model Explorer, drawings."""
