"""The dialects, as pure functions: bytes in, requests out; outputs in, bytes out. No sockets, no event loop."""
