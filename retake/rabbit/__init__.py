"""The client of RabbitMQ: exchanges and queues, confirmed messages, consumers, reconnection. It knows no pipeline.

`broker.Broker` is what programs of threads use; below it aio-pika runs in an event loop of one thread.
"""
