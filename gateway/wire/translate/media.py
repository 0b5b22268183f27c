"""Images and documents between the two dialects. URLs are passed on, never fetched."""

from __future__ import annotations

import msgspec

from gateway.wire.translate.shapes import (
    QUOTE,
    CannotTranslate,
    Notes,
    Object,
    as_object,
    as_string,
    starts,
    string_bytes,
)

IMAGE_TYPES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
PDF_TYPE = "application/pdf"
_IMAGE_KEYS = frozenset({"type", "image_url", "cache_control"})
_IMAGE_URL_KEYS = frozenset({"url", "detail"})
_FILE_KEYS = frozenset({"type", "file", "cache_control"})
_DOCUMENT_KEYS = frozenset({"type", "source", "title", "cache_control"})
_IMAGE_BLOCK_KEYS = frozenset({"type", "source", "cache_control"})


def _split_data_url(url: str, param: str) -> tuple[str, str]:
    """(media type, base64) of a `data:` URL."""
    head, comma, content = url[5:].partition(",")
    media_type, _, rest = head.partition(";")
    if not comma or "base64" not in rest.split(";"):
        raise CannotTranslate(f"{param} must be data:<media type>;base64,<content>", param=param)
    return media_type.strip().lower(), content


def image_block(part: Object, notes: Notes, param: str) -> dict[str, object]:
    """Chat `image_url` part → messages `image` block."""
    notes.drop_unknown(part, _IMAGE_KEYS, "messages.content")
    param = f"{param}.image_url"
    given = part.get("image_url")
    if given is not None and starts(given, QUOTE):  # the short form some clients send
        url = as_string(given, param)
    else:
        members = as_object(given if given is not None else msgspec.Raw(b"0"), param)
        notes.drop_unknown(members, _IMAGE_URL_KEYS, "messages.content.image_url")
        detail = members.get("detail")
        if detail is not None and bytes(detail) != b'"auto"':
            notes.drop("messages.content.image_url.detail")
        param = f"{param}.url"
        url = as_string(members.get("url"), param)
    return {"type": "image", "source": _image_source(url, param)}


def _image_source(url: str, param: str) -> dict[str, object]:
    if url[:5].lower() == "data:":
        media_type, content = _split_data_url(url, param)
        if media_type == "image/jpg":
            media_type = "image/jpeg"
        if media_type not in IMAGE_TYPES:
            raise CannotTranslate(
                f"{param}: {media_type or 'no media type'} cannot be sent to this model; "
                "use JPEG, PNG, GIF or WebP",
                param=param,
            )
        return {"type": "base64", "media_type": media_type, "data": content}
    if url[:8].lower() == "https://" or url[:7].lower() == "http://":
        return {"type": "url", "url": url}
    raise CannotTranslate(f"{param} must be a data:, https: or http: URL", param=param)


def document_block(part: Object, notes: Notes, param: str) -> dict[str, object]:
    """Chat `file` part → messages `document` block."""
    notes.drop_unknown(part, _FILE_KEYS, "messages.content")
    param = f"{param}.file"
    file = as_object(part.get("file", msgspec.Raw(b"0")), param)
    if "file_data" not in file:
        raise CannotTranslate(
            f"{param}: a file id is known only to the provider that issued it; "
            "send the content as file_data",
            param=f"{param}.file_id",
        )
    url = as_string(file["file_data"], f"{param}.file_data")
    if url[:8].lower() == "https://":
        source: dict[str, object] = {"type": "url", "url": url}
    elif url[:5].lower() == "data:":
        media_type, content = _split_data_url(url, f"{param}.file_data")
        if media_type != PDF_TYPE:
            raise CannotTranslate(
                f"{param}.file_data: only {PDF_TYPE} can be sent to this model",
                param=f"{param}.file_data",
            )
        source = {"type": "base64", "media_type": PDF_TYPE, "data": content}
    else:
        source = {"type": "base64", "media_type": PDF_TYPE, "data": url}
    block: dict[str, object] = {"type": "document", "source": source}
    if "filename" in file:
        block["title"] = string_bytes(file["filename"], f"{param}.filename")
    return block


def image_part(block: Object, notes: Notes, param: str) -> dict[str, object]:
    """Messages `image` block → chat `image_url` part."""
    notes.drop_unknown(block, _IMAGE_BLOCK_KEYS, "messages.content")
    source = as_object(block.get("source", msgspec.Raw(b"0")), f"{param}.source")
    kind = as_string(source.get("type"), f"{param}.source.type")
    if kind == "base64":
        media_type = as_string(source.get("media_type"), f"{param}.source.media_type")
        content = as_string(source.get("data"), f"{param}.source.data")
        url = f"data:{media_type};base64,{content}"
        return {"type": "image_url", "image_url": {"url": url}}
    if kind == "url":
        raw_url = string_bytes(source.get("url"), f"{param}.source.url")
        return {"type": "image_url", "image_url": {"url": raw_url}}
    raise CannotTranslate(
        f"{param}.source: a file id is known only to the provider that issued it; "
        "send the image as base64 or by URL",
        param=f"{param}.source",
    )


def document_part(block: Object, notes: Notes, param: str) -> dict[str, object]:
    """Messages `document` block → chat `file` or `text` part."""
    notes.drop_unknown(block, _DOCUMENT_KEYS, "messages.content")
    source = as_object(block.get("source", msgspec.Raw(b"0")), f"{param}.source")
    kind = as_string(source.get("type"), f"{param}.source.type")
    if kind == "text":
        if "title" in block:
            notes.drop("messages.content.title")
        return {"type": "text", "text": string_bytes(source.get("data"), f"{param}.source.data")}
    if kind == "base64":
        content = as_string(source.get("data"), f"{param}.source.data")
        file: dict[str, object] = {
            "filename": block.get("title", "document.pdf"),
            "file_data": f"data:{PDF_TYPE};base64,{content}",
        }
        return {"type": "file", "file": file}
    raise CannotTranslate(
        f"{param}.source: a document of type {kind!r} has no counterpart in the chat dialect; "
        "send it as base64 or as text",
        param=f"{param}.source",
    )
