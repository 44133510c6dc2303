"""What is found on a machine and in a kernel, for reports of faults."""
