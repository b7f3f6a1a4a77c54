"""Where two ways of running a model part: the work behind ``asyncnn diff``.

`extracts` rewrites models so that their tensors can be seen, `sides` runs them on
devices and on the runtimes of others, `pairing` says which tensors are the same,
`distances` how far they are apart, `finding` which operation that comes from, and
`evidence` keeps what repeats it.
"""
