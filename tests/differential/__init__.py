"""Random programs and scripts, judged by an interpreter that shares nothing with irgraph's own."""
