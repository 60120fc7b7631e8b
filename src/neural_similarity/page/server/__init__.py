"""The server of the page; it needs FastAPI and uvicorn (the extra ``page``)."""

from .app import create_app
from .serve import serve

__all__ = ["create_app", "serve"]
