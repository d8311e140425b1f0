"""The HTTP service and its page: `create_app` makes it of an index; needs the extra suffuse[service].

limits     how much a request may ask for
problems   every error as one JSON shape
models     what requests and answers look like
guard      what happens to every request before and after its route: token, size, time, headers
metrics    counts and times for Prometheus
catalogue  names and metadata of all pictures, and filters on them
pictures   files under the image root: thumbnails, uploads
queries    what a request looks for, and the queries that are remembered
work       threads, so that the event loop never waits
engine     an index and all of the above, without HTTP
connections, statements, database
           the same for an index in PostgreSQL; needs the extra suffuse[postgres], too
interface  what the endpoints need of either
routes     the endpoints
app        the whole
"""

from suffuse.service.app import create_app
from suffuse.service.limits import Limits

__all__ = ["Limits", "create_app"]
