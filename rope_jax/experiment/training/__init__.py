"""Training in stages, on one device or many: one step, runs that survive, a record of what was seen."""
