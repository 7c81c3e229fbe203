"""States: documents that are saved again and again, with history and migrations."""
