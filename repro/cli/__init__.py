"""The `repro` command, one file for each verb."""
