"""Read by hatchling when the package is built: the links of the README, made to work on PyPI."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)(\[[^\[\]]*\])\((?!https?://|#)([^()\s]+)\)")
"""A link or a picture of Markdown whose address is a path in the repository."""


def with_addresses(text: str, repository: str, version: str) -> str:
    """Return Markdown whose relative links lead to the files of a release in the repository."""

    def absolute(found: re.Match[str]) -> str:
        picture, words, path = found.groups()
        return f"{picture}{words}({repository}/{'raw' if picture else 'blob'}/v{version}/{path})"

    return LINK.sub(absolute, text)


class ReadmeHook(MetadataHookInterface):
    """Makes the description of the package from the README."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the field ``readme`` of the metadata."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = with_addresses(text, metadata["urls"]["Repository"], metadata["version"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
