"""The paper's methods: networks with a similarity, which the support set or the input decides."""

from . import dynamic, meta_dynamic, meta_static, static

__all__ = ["dynamic", "meta_dynamic", "meta_static", "static"]
