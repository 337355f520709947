"""The node agent: claims resources, relays to the supervisors, reports to the controller."""
