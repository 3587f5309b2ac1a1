from hypothesis import HealthCheck, settings

# A machine that is busy elsewhere is no fault of the code: an example may take as long as it takes.
settings.register_profile("story", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("story")
