"""The Jupyter server extension: who may ask, and the way to the engine process. It never imports torch."""
