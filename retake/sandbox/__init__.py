"""Stand-ins of the vendors that speak the real wire protocols over HTTP on loopback, and fail to order."""
