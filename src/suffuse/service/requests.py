"""What endpoints read of a request: the service it is for, the kind of its body, a form with a picture."""

from typing import TYPE_CHECKING, Any, NamedTuple

from fastapi import Request
from starlette.datastructures import UploadFile

from suffuse.service.problems import Problem

if TYPE_CHECKING:
    from suffuse.service.routes import Service

# Beside the file an upload has a few numbers.
_REQUEST_BYTES = 1_000_000


class Form(NamedTuple):
    """A picture, what its file was called, and the JSON beside it."""

    text: bytes
    image: bytes
    called: str


def service_of(request: Request) -> "Service":
    """The service that a request is for."""
    service: Service = request.app.state.service
    return service


def content_type(request: Request) -> str:
    """The kind of the body."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def uploaded(request: Request, most: int) -> Form:
    """The JSON and the file of a form."""
    async with request.form(max_files=1, max_fields=4, max_part_size=_REQUEST_BYTES) as form:
        image, text = form.get("image"), form.get("request", "{}")
        if not isinstance(image, UploadFile) or not isinstance(text, str):
            raise Problem(422, "the form needs a file 'image', and may have a text 'request'")
        data = await image.read(most + 1)
    if len(data) > most:
        raise Problem(413, f"the file is longer than {most:,} bytes", "make the picture smaller first")
    return Form(text.encode(), data, image.filename or "")


def schema_body(model: str, beside: str, example: str | None = None) -> dict[str, Any]:
    """The OpenAPI description of a body that is JSON, or a form with a picture and JSON beside it."""
    text: dict[str, Any] = {"type": "string", "description": f"JSON as {beside}."}
    if example is not None:
        text["examples"] = [example]
    form = {
        "type": "object",
        "required": ["image"],
        "properties": {"image": {"type": "string", "format": "binary", "description": "A picture."}, "request": text},
    }
    json = {"$ref": f"#/components/schemas/{model}"}
    content = {"application/json": {"schema": json}, "multipart/form-data": {"schema": form}}
    return {"requestBody": {"required": True, "content": content}}
