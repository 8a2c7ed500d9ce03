"""Settings of all tests: hypothesis draws the same examples everywhere, which on several ranks it must."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("same", deadline=None, database=None, derandomize=True)
settings.register_profile("explore", deadline=None, database=None, max_examples=2000, print_blob=True)
settings.load_profile("same")
