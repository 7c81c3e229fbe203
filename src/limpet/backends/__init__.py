"""Where journals live. `limpet.backends.contract` is the contract; one file here is one backend."""
