#!/usr/bin/env python3
"""Fetch Debian packages whose licences let a trained model be passed on, and take their text out.

    tools/model/packages.py -o DIR        DIR/DOMAIN.train.txt and DIR/DOMAIN.valid.txt per domain

Documents are separated by NUL. SOURCES lists every package with its licence; models/DATA.md says
why each is there and what was left out. Packages come through apt with lists and a configuration of
their own below DIR, so that neither root nor a change of the machine's sources is needed; what lies
there already is not fetched again. DIR/packages.json records files and checksums.
"""

import argparse
import dataclasses
import gzip
import hashlib
import html.parser
import json
import pathlib
import random
import re
import subprocess
import sys
import tarfile

MIRROR = "http://deb.debian.org/debian bookworm main"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
PIECE = 4000  # characters: long documents are cut into pieces
VALID_SHARE = 50  # one piece in so many is kept for validation
PIECE_MIN = 60


@dataclasses.dataclass(frozen=True)
class Source:
    domain: str
    package: str
    licence: str
    files: str  # regular expression over paths in the package
    reader: str  # a key of READERS
    source: bool = False  # a source package
    megabytes: float = 1.5  # at most so much of it


SOURCES = (
    Source("en", "wordnet-base", "WordNet licence, like BSD", r"/data\.(noun|adj|verb|adv)$",
           "wordnet"),
    Source("en", "dict-devil", "public domain", r"devil\.dict\.dz$", "dictionary"),
    Source("en", "sqlite3-doc", "public domain", r"\.html$", "html"),
    Source("en", "python3.11-doc", "PSF-2.0", r"/html/(tutorial|library|faq|howto)/.*\.html$",
           "html", megabytes=3),
    Source("zh", "fortunes-zh", "public domain: poems of Tang and Song", r"/(tang300|song100)$",
           "fortunes"),
    Source("c", "musl", "MIT", r"/src/.*\.[ch]$", "text", source=True, megabytes=2.5),
    Source("c", "lua5.4", "MIT", r"\.[ch]$", "text", source=True),
    Source("c", "zlib", "zlib", r"/zlib[^/]*/[^/]*\.[ch]$", "text", source=True),
    Source("c", "libuv1", "MIT", r"/src/.*\.[ch]$", "text", source=True),
    Source("c", "libstb-dev", "public domain or MIT", r"\.h$", "text"),
    Source("py", "libpython3.11-stdlib", "PSF-2.0", r"/python3\.11/[^/]*\.py$", "text",
           megabytes=4),
    Source("py", "python3-docutils", "public domain and BSD", r"\.py$", "text"),
)


# Fetching ----------------------------------------------------------------------------------------


class Fetcher:
    """apt with everything it writes below one folder."""

    def __init__(self, folder):
        self.folder = folder / "packages"
        for part in ("lists/partial", "cache/archives/partial", "files"):
            (self.folder / part).mkdir(parents=True, exist_ok=True)
        signed = f"[signed-by={KEYRING}]"
        listing = self.folder / "sources.list"
        listing.write_text(f"deb {signed} {MIRROR}\ndeb-src {signed} {MIRROR}\n")
        self.options = ["-q", "-q", "-o", f"Dir::Etc::sourcelist={listing}",
                        "-o", "Dir::Etc::sourceparts=-",
                        "-o", f"Dir::State::Lists={self.folder / 'lists'}",
                        "-o", f"Dir::Cache={self.folder / 'cache'}",
                        "-o", "APT::Sandbox::User="]
        self.updated = False

    def apt(self, *arguments):
        subprocess.run(["apt-get", *self.options, *arguments], check=True,
                       cwd=self.folder / "files")

    def files(self, source):
        name = source.package
        pattern = f"{name}_*.orig.tar.*[!c]" if source.source else f"{name}_*.deb"
        return sorted(p for p in (self.folder / "files").glob(pattern) if p.suffix != ".asc")

    def fetch(self, source):
        """The package's file, from the network where it is not here yet."""
        if not self.files(source):
            print(f"fetching {source.package}", flush=True)
            if not self.updated:
                self.apt("update")
                self.updated = True
            if source.source:
                self.apt("source", "--download-only", source.package)
            else:
                self.apt("download", source.package)
        return self.files(source)[-1]


def members(path):
    """(name, bytes) of the files in a package, in the order of their names."""
    if path.suffix == ".deb":
        pipe = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", path], stdout=subprocess.PIPE)
        with pipe, tarfile.open(fileobj=pipe.stdout, mode="r|") as tar:
            found = [(m.name, tar.extractfile(m).read()) for m in tar if m.isfile()]
    else:
        with tarfile.open(path) as tar:
            found = [(m.name, tar.extractfile(m).read()) for m in tar if m.isfile()]
    return sorted(found)


# Reading -----------------------------------------------------------------------------------------


class Paragraphs(html.parser.HTMLParser):
    """The running text of a page, a paragraph per line."""

    BLOCKS = {"p", "div", "li", "h1", "h2", "h3", "h4", "tr", "dt", "dd", "pre", "br", "td", "ul"}
    SILENT = {"script", "style", "head", "nav", "footer", "svg", "button"}

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.out, self.silent = [], 0
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.silent += tag in self.SILENT
        if tag in self.BLOCKS:
            self.out.append("\n")

    def handle_endtag(self, tag):
        self.silent -= tag in self.SILENT and self.silent > 0
        if tag in self.BLOCKS:
            self.out.append("\n")

    def handle_data(self, data):
        if not self.silent:
            self.out.append(re.sub(r"\s+", " ", data))


def is_prose(line):
    letters = sum(c.isalpha() or c == " " for c in line)
    return len(line) >= 40 and line.count(" ") >= 6 and letters >= 0.8 * len(line)


def read_html(data):
    lines = "".join(Paragraphs(data.decode("utf-8", "ignore")).out).split("\n")
    lines = [" ".join(line.split()) for line in lines]
    return ["\n".join(line.replace("¶", "") for line in lines if is_prose(line))]


def read_dictionary(data):
    text = gzip.decompress(data).decode("utf-8", "ignore")
    paragraphs = re.split(r"\n\s*\n", text)
    return ["\n".join(" ".join(p.split()) for p in paragraphs if is_prose(" ".join(p.split())))]


def read_wordnet(data):
    """A word and its meaning per line, without the numbers."""
    lines = []
    for line in data.decode("ascii", "ignore").split("\n"):
        if line and not line.startswith("  "):
            fields, _, gloss = line.partition("|")
            lines.append(fields.split()[4].replace("_", " ") + ": " + gloss.strip())
    return ["\n".join(lines)]


def read_fortunes(data):
    text = re.sub(r"\x1b\[[0-9;]*m", "", data.decode("utf-8"))
    return ["\n\n".join(piece.strip() for piece in text.split("\n%\n"))]


def read_text(data):
    return [data.decode("utf-8", "ignore").replace("\r", "")]


READERS = {"html": read_html, "dictionary": read_dictionary, "wordnet": read_wordnet,
           "fortunes": read_fortunes, "text": read_text}


def pieces(source, path, rng):
    """What a package has to say, cut, each piece once, shuffled, no more than its share."""
    chosen = re.compile(source.files)
    texts = [text for name, data in members(path) if chosen.search("/" + name)
             for text in READERS[source.reader](data)]
    cut = dict.fromkeys(text[i:i + PIECE].replace("\0", "").strip()
                        for text in texts for i in range(0, len(text), PIECE))
    found = [piece for piece in cut if len(piece) >= PIECE_MIN]
    if not found:
        sys.exit(f"packages: nothing in {path.name} is {source.files}")
    rng.shuffle(found)
    left = source.megabytes * 1e6
    for piece in found:
        left -= len(piece.encode())
        if left < 0:
            return
        yield piece


def extract(folder):
    fetcher, rng = Fetcher(folder), random.Random(7)
    domains, record = {}, []
    for source in SOURCES:
        path = fetcher.fetch(source)
        texts = list(pieces(source, path, rng))
        size = sum(len(text.encode()) for text in texts)
        domains.setdefault(source.domain, []).extend(texts)
        record.append({"package": source.package, "file": path.name, "licence": source.licence,
                       "domain": source.domain, "bytes": size,
                       "sha256": hashlib.sha256(path.read_bytes()).hexdigest()})
        print(f"{source.domain} {path.name}: {len(texts)} pieces, {size / 1e6:.2f} MB",
              flush=True)
    for domain, texts in domains.items():
        rng.shuffle(texts)
        valid = max(2, len(texts) // VALID_SHARE)
        (folder / f"{domain}.valid.txt").write_text("\0".join(texts[:valid]))
        (folder / f"{domain}.train.txt").write_text("\0".join(texts[valid:]))
    (folder / "packages.json").write_text(json.dumps(record, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("-o", dest="output", required=True, metavar="DIR", type=pathlib.Path)
    extract(parser.parse_args().output.absolute())


if __name__ == "__main__":
    main()
