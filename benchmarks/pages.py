"""Tables of the pages that the benchmarks write."""


def table(head, rows):
    """Return a table in Markdown."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(map(str, r)) + " |" for r in rows)])
