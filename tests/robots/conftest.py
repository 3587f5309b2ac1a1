from hypothesis import settings

# A machine that is busy elsewhere is no fault of the code: an example may take as long as it takes.
settings.register_profile("robots", deadline=None, print_blob=True)
settings.load_profile("robots")
