"""The whole image-job service on one machine: Redis, RabbitMQ, PostgreSQL, a stand-in for ComfyUI, the API and workers,
as children of one process that starts them, restarts those that end, and ends all of them.

This is `python -m retake images up`. None of it is needed where the servers are provided.
"""
