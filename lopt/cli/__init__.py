"""The `lopt` command: entry point and `lopt show`."""
