"""The decisions of the controller, without I/O: typed events in, typed instructions out."""
