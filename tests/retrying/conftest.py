from hypothesis import settings

# A busy machine is no fault of the code: an example may take as long as it needs.
settings.register_profile("retrying", deadline=None, print_blob=True)
settings.load_profile("retrying")
