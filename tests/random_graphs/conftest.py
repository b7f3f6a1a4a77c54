from tests.random_graphs import trying

trying.register_profiles()
