"""The paper's methods: networks whose similarity depends on the support set or the input."""

from . import dynamic, meta_dynamic, meta_static, static

__all__ = ["dynamic", "meta_dynamic", "meta_static", "static"]
