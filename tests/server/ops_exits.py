"""A module that would end the process as it is imported."""

raise SystemExit("this module only runs on Sundays")
