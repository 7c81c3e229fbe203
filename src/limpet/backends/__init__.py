"""Where journals live. `limpet.backends.base` is the contract; one file here is one backend."""
