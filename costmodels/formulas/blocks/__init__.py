"""What kernels cost by the blocks that torch gives them, and by what each of these does in turn."""
