"""Pages and links of the site: called by tests/site."""

import html.parser
import os
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")


def fail(lines):
    sys.exit("\n".join(f"tests/site: {line}" for line in lines))


def without_code(text):
    """Blanks out fenced blocks and code spans, whose brackets are no links; lines stay."""
    text = re.sub(r"^( *)```.*?^ *```$", lambda block: "\n" * block[0].count("\n"), text, flags=re.M | re.S)
    return re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "", text)


def commands(program):
    """The page of all commands: the help of each."""
    def help_of(words):
        return subprocess.run([program, *words, "--help"], check=True, capture_output=True, text=True,
                              env={**os.environ, "COLUMNS": "100"}).stdout.rstrip()

    def listed(text):
        block = re.search(r"^Commands:\n(.*?)\n\n", text + "\n\n", re.M | re.S)
        return re.findall(r"^  ([a-z][a-z-]*)", block[1], re.M) if block else []

    page = ["# Commands", "", "The help of every command, as `chancery COMMAND --help` prints it. This page is generated from the program."]

    def add(words):
        text = help_of(words)
        page.extend(["", f"## {' '.join(['chancery', *words])}", "", "```text", text, "```"])
        for command in listed(text):
            add([*words, command])

    add([])
    return "\n".join(page) + "\n"


def leaving(page):
    """Replaces links out of docs/ by the names of their files: these are in the sources, not on the site."""
    def named(link):
        text, target = link[1], link[2]
        if "://" in target or target.startswith("#"):
            return link[0]
        path = (page.parent / target.split("#")[0]).resolve()
        if path.is_relative_to(DOCS):
            return link[0]
        name = str(path.relative_to(ROOT))
        return f"`{name}`" if name in text else f"{text} (`{name}` in the sources)"
    return named


def pages(program, out):
    """Copies docs/ to `out`, with the pages of commands and decisions."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    shutil.copy(DOCS / "book.toml", out)
    for page in DOCS.rglob("*.md"):
        copy = out / page.relative_to(DOCS)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(LINK.sub(leaving(page), page.read_text()))
    (out / "security.md").write_text((ROOT / "SECURITY.md").read_text().replace("](docs/", "]("))
    (out / "commands.md").write_text(commands(program))
    decisions = sorted((DOCS / "decisions").glob("*.md"))
    title = {page: page.read_text().splitlines()[0].removeprefix("# ") for page in decisions}
    lines = [f"- [{title[page]}]({page.name})" for page in decisions]
    (out / "decisions/index.md").write_text("\n".join(["# Decisions", "", "What was decided, and why.", "", *lines]) + "\n")
    index = (out / "index.md").read_text()
    (out / "index.md").write_text(index.replace("](decisions/)", "](decisions/index.md)").replace(
        "Security (`SECURITY.md` in the sources)", "[Security](security.md)"))
    summary = (out / "SUMMARY.md").read_text().replace("- [Guarantees]", "- [Security](security.md)\n- [Guarantees]")
    nested = [f"  - [{title[page]}](decisions/{page.name})" for page in decisions]
    (out / "SUMMARY.md").write_text("\n".join([summary.rstrip(), "- [Decisions](decisions/index.md)", *nested]) + "\n")
    listed = {target for _, target in LINK.findall((out / "SUMMARY.md").read_text())}
    missing = {str(page.relative_to(out)) for page in out.rglob("*.md")} - listed - {"SUMMARY.md"}
    if missing:
        fail(f"docs/SUMMARY.md does not list {page}" for page in sorted(missing))


class Page(html.parser.HTMLParser):
    """Links and anchors of a page of the site."""

    def __init__(self, path):
        super().__init__()
        self.links, self.anchors = [], set()
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name == "id":
                self.anchors.add(value)
            elif tag == "a" and name == "href" and value:
                self.links.append(value)


def slugs(text):
    """Anchors of the headings of a Markdown file, as GitHub names them."""
    found = set()
    for heading in re.findall(r"^#+ +(.+?) *#*$", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), re.M):
        heading = LINK.sub(r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", heading).replace(" ", "-")
        number, unique = 0, slug
        while unique in found:
            number += 1
            unique = f"{slug}-{number}"
        found.add(unique)
    return found


def links(site):
    """Checks the links of the site, and those of all Markdown files."""
    wrong, count = [], 0
    read = {path: Page(path) for path in site.rglob("*.html")}
    for path, page in read.items():
        if path.name in ("404.html", "print.html", "toc.html"):
            continue
        for link in page.links:
            url = urllib.parse.urlsplit(link)
            if url.scheme or url.netloc:
                continue
            count += 1
            target = path if not url.path else (path.parent / urllib.parse.unquote(url.path)).resolve()
            if not target.is_file():
                wrong.append(f"{path.relative_to(site)}: no page {link}")
            elif url.fragment and target in read and urllib.parse.unquote(url.fragment) not in read[target].anchors:
                wrong.append(f"{path.relative_to(site)}: no anchor {link}")
    files = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md"], cwd=ROOT, check=True,
                           capture_output=True, text=True).stdout.split("\0")
    for name in filter(None, files):
        file = ROOT / name
        for _, link in LINK.findall(without_code(file.read_text())):
            url = urllib.parse.urlsplit(link)
            if url.scheme or (DOCS / "SUMMARY.md" == file):
                continue
            count += 1
            target = file if not url.path else file.parent / urllib.parse.unquote(url.path)
            generated = file == DOCS / "index.md" and url.path == "commands.md"
            if not target.exists() and not generated:
                wrong.append(f"{name}: no file {link}")
            elif url.fragment and target.suffix == ".md" and url.fragment not in slugs(target.read_text()):
                wrong.append(f"{name}: no heading {link}")
    if wrong:
        fail(wrong)
    if count < 500:
        fail([f"only {count} links were found"])
    print(f"tests/site: passed: {len(read)} pages, {count} links")


if sys.argv[1] == "pages":
    pages(pathlib.Path(sys.argv[2]).resolve(), pathlib.Path(sys.argv[3]))
else:
    links(pathlib.Path(sys.argv[2]).resolve())
