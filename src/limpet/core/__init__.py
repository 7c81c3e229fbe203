"""What every model stands on: journals, codec, leases, and one body of code for sync and async."""
