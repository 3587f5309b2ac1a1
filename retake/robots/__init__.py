"""Nine robots' error protocols (seed 003): their policies are data in config/policies, a file a robot; here is what
reads them, and what works as they say."""
