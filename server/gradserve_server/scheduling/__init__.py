"""Scheduling: from a waiting request to one call on a device."""
