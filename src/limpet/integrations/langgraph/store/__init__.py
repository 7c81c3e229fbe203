"""A store for LangGraph's long-term memory: see `LimpetStore`."""
