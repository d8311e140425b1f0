"""The HTTP service and its page: `create_app` makes it from an index; needs the extra suffuse[service].

From the bottom up: problems, models, guard; pictures, queries; engine, database; changes; routes; app.
"""

from suffuse.server.app import create_app
from suffuse.server.models import Limits

__all__ = ["Limits", "create_app"]
