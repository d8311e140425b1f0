"""The HTTP service and its page: `create_app` makes it of an index; needs the extra suffuse[service].

limits     how much a request may ask for
problems   every error as one JSON shape
models     what requests and answers look like
guard      what happens to every request before and after its route: token, size, time, headers
metrics    counts and times for Prometheus
catalogue  names and metadata of all pictures, and filters on them
kept       values that are kept as long as there is room
pictures   files under the image root: thumbnails, uploads
saving     uploaded pictures put there
queries    what a request looks for, and the queries that are remembered
work       threads, so that the event loop never waits
view       one generation of an index, and what can be asked of it
following  looks whether another process has changed the index
engine     an index through its generations, with all of the above, without HTTP
changing   the one writer of a service
connections, statements, database
           the same for an index in PostgreSQL; needs the extra suffuse[postgres], too
interface  what the endpoints need of either
requests   what endpoints read of a request
routes, change_routes
           the endpoints
app        the whole
"""

from suffuse.server.app import create_app
from suffuse.server.models import Limits

__all__ = ["Limits", "create_app"]
