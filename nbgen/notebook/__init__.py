"""What runs in the kernel: client, magics, helpers and widgets. It never imports torch, nor the server."""
