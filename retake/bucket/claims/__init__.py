"""Leases in a store that has no locks (B2, S3): small objects, called claims, that never change, and true listings."""
