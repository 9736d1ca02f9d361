"""Models that are built without memory: what initialises their tensors is recorded, and done when it is known who needs which."""
