#!/usr/bin/env python3
"""Fail when a public function lacks its documentation keys, when a document or a comment points at a file or
heading that does not exist, or when a merge left its marks."""
import pathlib
import re
import subprocess
import sys

EVERY_KEY = ("reads", "writes", "errors", "cost", "threads", "source")
COMPUTING = {"ffpa_forward", "ffpa_backward", "ffpa_merge"}  # these spell every key out


def public_functions(header):
    """(name, returns a status, comment above the group of declarations it stands in)"""
    for m in re.finditer(r"/\*((?:(?!\*/).)*)\*/\n((?:FFPA_API [^;]*;\s*?\n)+)", header, re.S):
        for f in re.finditer(r"FFPA_API ([^;(]*?)(\w+)\([^;]*;", m[2]):
            yield f[2], "ffpa_status" in f[1], re.sub(r"\s*\n \*\s*", " ", m[1])


def missing_keys(header):
    documented = list(public_functions(header))
    declared = set(re.findall(r"^FFPA_API [^;(]*?(\w+)\(", header, re.M))
    for name in sorted(declared - {d[0] for d in documented}):
        yield f"ffpa.h: {name} has no comment above it"
    for name, can_fail, text in documented:
        as_another = re.search(r"as (for )?ffpa_\w+|what ffpa_\w+ would return|as for the call", text, re.I)
        wanted = EVERY_KEY if name in COMPUTING else ("thread",) + (("error",) if can_fail else ())
        for key in wanted:
            said = re.search(key, text, re.I) or (key == "error" and "E_" in text)
            if not said and not (as_another and name not in COMPUTING):
                yield f"ffpa.h: the comment of {name} does not say '{key}'"


def anchors(text):
    heads = re.findall(r"^#+\s+(.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in heads}


def dead_links(root, path):
    text = (root / path).read_text()
    for n, line in enumerate(text.splitlines(), 1):
        for link in re.findall(r"\]\(([^)\s]+)\)", line):
            if re.match(r"[a-z]+:", link):
                continue
            file, _, anchor = link.partition("#")
            target = (root / path.parent / file) if file else root / path
            if not target.exists():
                yield f"{path}:{n}: {link} does not exist"
            elif anchor and target.suffix == ".md" and anchor not in anchors(target.read_text()):
                yield f"{path}:{n}: {link}: no such heading"


def dead_mentions(root, path, tracked):
    """Paths such as docs/numerics.md or docs/design/0002 in any text; the latter names a file's start."""
    rooms = r"(?:docs|src|include|cli|tests|tools|bench|examples|kernels)"
    for n, line in enumerate((root / path).read_text(errors="replace").splitlines(), 1):
        if line.startswith(("<" * 7 + " ", ">" * 7 + " ")):
            yield f"{path}:{n}: the mark of a merge"
        for mention in re.findall(rf"(?<![\w/.\-]){rooms}/[\w./\-]*\w(?![\w*<>{{])", line):
            if not any(t == mention or t.startswith((mention + "/", mention + "-")) for t in tracked):
                yield f"{path}:{n}: {mention} does not exist"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    listing = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"],
                             cwd=root, check=True, capture_output=True, text=True).stdout.splitlines()
    tracked = [t for t in listing if (root / t).exists()]
    bad = list(missing_keys((root / "include/ffpa/ffpa.h").read_text()))
    for name in tracked:
        path = pathlib.Path(name)
        if path.suffix == ".md":
            bad += dead_links(root, path)
        if path.suffix in {".md", ".c", ".h", ".cuh"}:
            bad += dead_mentions(root, path, tracked)
    print("\n".join(bad) if bad else "docs: every public function and every link is in order")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
