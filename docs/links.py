"""Check the built site: every link inside it leads somewhere, and no page needs a network.

``python docs/links.py docs/_build/html`` prints what is wrong, and then ends with status 1. Links
to other sites are not followed; ``sphinx -b linkcheck`` does that.
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The anchors of a page, its links, and what a browser loads with it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.anchors |= {found[key] for key in ("id", "name") if found.get(key)}
        if tag == "a" and found.get("href"):
            self.links.append(found["href"])
        loads = tag == "link" and "stylesheet" in (found.get("rel") or "")
        self.loaded += [found["href"]] if loads else []
        self.loaded += [found["src"]] if found.get("src") else []


def problems(folder: Path) -> list[str]:
    """Return a line for each broken link, and for each file of another site that a page loads."""
    pages = {
        path.resolve(): Page(path.read_text(encoding="utf-8")) for path in folder.rglob("*.html")
    }
    found = []
    for path, page in sorted(pages.items()):
        name = path.relative_to(folder.resolve())
        outside = [url for url in page.loaded if urlsplit(url).netloc]
        found += [f"{name}: loads {url}" for url in outside]
        for url in [*page.links, *page.loaded]:
            parts = urlsplit(url)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            if not target.is_file():
                found.append(f"{name}: no file {url}")
            elif target in pages and anchor and anchor not in pages[target].anchors:
                found.append(f"{name}: no anchor {url}")
    return found


def main(folder: Path) -> int:
    if not (folder / "index.html").is_file():
        print(f"{folder} is no built site")
        return 1
    found = problems(folder)
    print("\n".join(found) or "all links lead somewhere")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
