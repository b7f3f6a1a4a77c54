from tests.random_graphs import profiles

profiles.register()
