# SPDX-License-Identifier: Apache-2.0
"""Names of headings as GitHub makes them, so that one link works there and on the site."""
import re


def slugify(text, _separator):
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")
