"""Floor 7: the Open Inference Protocol in front of a device, by HTTP and gRPC.

Needs packages of the extra ``oip``: ``pip install asyncnn[oip]``. Without them it can
be imported, but not serve. It knows the awaitable face alone, `asyncnn.Device` and what
that prepares, and so serves any device: one of this process, or a driver's.

`Repository`
    the models of a server, by name and version, and what is under way for them
`rest_served`, `rpc_served`, `Address`, `Security`
    listen by HTTP or gRPC, for as long as a context lasts
`OipLimits`, `Tokens`
    what clients may have, and who they may be

>>> import asyncio
>>> import urllib.request
>>> import asyncnn
>>> from asyncnn.oip import Address, NamedFile, Repository, rest_served
>>> async def main():
...     path = asyncnn.bundled_file("digits_float.asyncnn")
...     file = NamedFile("digits", "1", path)
...     async with asyncnn.open_device() as device:
...         repository = Repository(device, [file])
...         await repository.load_all()
...         async with rest_served(repository, Address.of(":0")) as address:
...             url = f"http://{address}/v2/models/digits/ready"
...             return await asyncio.to_thread(fetched, url)
>>> def fetched(url):
...     with urllib.request.urlopen(url, timeout=5) as response:
...         return response.read().decode()
>>> asyncio.run(main())
'{"name":"digits","ready":true}'
"""

from asyncnn.lazy import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncnn.oip.admission import OipLimits as OipLimits
    from asyncnn.oip.admission import Tokens as Tokens
    from asyncnn.oip.listening import Address as Address
    from asyncnn.oip.listening import Security as Security
    from asyncnn.oip.listening import rest_served as rest_served
    from asyncnn.oip.listening import rpc_served as rpc_served
    from asyncnn.oip.repository import NamedFile as NamedFile
    from asyncnn.oip.repository import Repository as Repository
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "asyncnn.oip.admission": "OipLimits Tokens",
            "asyncnn.oip.listening": "Address Security rest_served rpc_served",
            "asyncnn.oip.repository": "NamedFile Repository",
        },
        extra="oip",
    )
