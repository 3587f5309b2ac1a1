"""Leases in a store without locks (B2, S3): small immutable objects, called claims, and consistent listings."""
