"""The client's side: a driver in another process as an `IDevice` and what it makes."""
