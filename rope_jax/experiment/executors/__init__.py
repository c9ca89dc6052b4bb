"""Where the cells of a sweep are measured: one after the other in this process, or by workers of a Ray cluster."""
