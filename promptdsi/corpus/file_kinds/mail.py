"""E-mail: who wrote to whom and when, the subject as title, and the body. Attachments are named, not read."""

from __future__ import annotations

import email
import email.policy
from typing import cast

from promptdsi.corpus.decoding import decode_named
from promptdsi.corpus.extract import Extract, properties
from promptdsi.corpus.file_kinds.web import markdown_of
from promptdsi.wording import counted

NAME = "mail"
SUFFIXES = (".eml",)
HEADERS = ("From", "To", "Cc", "Date")


def extract(contents: bytes) -> Extract:
    message = email.message_from_bytes(contents, policy=email.policy.default)
    if not message.keys():
        raise ValueError("is no e-mail: it has no header")
    body = message.get_body(("plain", "html"))
    text, notes = "", list[str]()
    if body is not None:
        text, notes = decode_named(cast("bytes", body.get_payload(decode=True)), body.get_content_charset("utf-8"))
        text = markdown_of(text) if body.get_content_subtype() == "html" else text
    headers = [f"{name}: {' '.join(str(message[name]).split())}" for name in HEADERS if message[name]]
    names = [part.get_filename() or part.get_content_type() for part in message.iter_attachments()] if message.is_multipart() else []
    headers += [f"Attachment: {name}" for name in names]
    date = getattr(message["Date"], "datetime", None)
    title, metadata = properties(title=message["Subject"], author=message["From"], date=date)
    notes += [f"{counted(len(names), 'attachment')} not read ({', '.join(names[:3])})"] if names else []
    return Extract("\n".join(headers) + "\n\n" + text.strip(), title, metadata, notes=notes)
