"""Floor 7: conformance vectors, their pass criteria, and evaluators to run them on.

A vector file holds the cases of one specification of the public Neural Networks test
suite: `vectors` reads them, `criteria` judges outputs, and `direct` computes outputs
in the simplest way there is, as the yardstick for the engine and the devices.
"""
