"""Floor 7: the public Neural Networks test suite, run on any device.

A vector file holds the cases of one specification of the suite: `vectors` reads them,
`preparing` and `executing` bring them to a device by any call of the HAL, `judging`
says what is wrong with the answers, and `suite` does so for all files.
`mutations` makes illegal models and requests of its cases.
"""
