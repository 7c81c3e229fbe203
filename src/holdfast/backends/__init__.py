"""Where journals live. `holdfast.backends.base` is the contract; one file here is one backend."""
