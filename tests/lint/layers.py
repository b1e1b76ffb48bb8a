"""The layer law of CONTRIBUTING.md, read off the #include lines.  layers.py ROOT"""
import os
import re
import sys

import tree

# layer -> where its files are, and the layers its files may include besides itself
LAYERS = {
    "base": ("proto/base/", ()),
    "wire": ("proto/wire/", ("base",)),
    "control": ("proto/control/", ("base",)),
    "client": ("proto/client/", ("base", "control")),
    "kernels": ("kernels/", ("base",)),
    "model": ("daemon/model/", ("base", "kernels")),
    "duck": ("daemon/duck/", ("base", "wire", "kernels")),
    "head": ("daemon/head/", ("base", "wire", "control", "kernels", "model")),
    "ctl": ("ctl/", ()),
}
# What only fp9.h may tell: a client program must be writable outside the tree.
SEES_ONLY_FP9_H = ("ctl/", "proto/client/examples/", "host/")
# A PURE file decides; it neither waits nor talks.
IMPURE_DIRECT = re.compile(r"^(event2?/|event\.h|sqlite3|sys/(socket|epoll|un|poll|select|eventfd|timerfd|signalfd|mman)\.h|"
                           r"netinet/|arpa/|netdb|poll\.h|pthread|threads\.h|unistd|systemd/|openssl/ssl|signal\.h|fcntl)")
IMPURE_ANYHOW = re.compile(r"^(event2?/|event\.h|sqlite3|sys/(socket|epoll)\.h|pthread|threads\.h|systemd/)")


def layer_of(path):
    for layer, (folder, _) in LAYERS.items():
        if path.startswith(folder):
            return layer
    return None


def includes(text):
    blanked = tree.without_comments(text).splitlines()
    for number, (line, real) in enumerate(zip(blanked, text.splitlines()), 1):
        if re.match(r"\s*#\s*include\b", line):
            match = re.match(r'\s*#\s*include\s*(["<])([^">]+)[">]', real)
            if match:
                yield number, match.group(1) == '"', match.group(2)


def is_pure(text):
    return re.search(r"/\*\s*PURE\b", "\n".join(text.splitlines()[:10])) is not None


def main():
    root = sys.argv[1]
    verdict = tree.Verdict("layers")
    sources = tree.files(root, ".c", ".h", ".inc")
    texts = {path: tree.read(root, path) for path in sources}
    wanted = {path: list(includes(text)) for path, text in texts.items()}

    for path in sources:
        layer = layer_of(path)
        for number, quoted, name in wanted[path]:
            where = f"{path}:{number}"
            if not quoted:
                if name.startswith(("event2/", "event.h")):
                    verdict.check(path.startswith("daemon/head/loop.") , f"{where}: <{name}>: only daemon/head/loop.c knows libevent")
                verdict.check(not os.path.exists(os.path.join(root, name)), f"{where}: <{name}> is a file of the tree: use quotes")
                continue
            if not verdict.check("/" in name and (os.path.exists(os.path.join(root, name)) or name.startswith("generated/")),
                                 f'{where}: "{name}" is not a path from the root of the tree'):
                continue
            target = layer_of(name)
            if path.startswith(SEES_ONLY_FP9_H):
                verdict.check(name == "proto/client/fp9.h" or (path.startswith("ctl/") and name.startswith("ctl/"))
                              or (path.startswith("host/") and name.startswith("host/")),
                              f'{where}: "{name}": this layer sees only proto/client/fp9.h')
            elif layer:
                allowed = (layer, *LAYERS[layer][1])
                verdict.check(target in allowed, f'{where}: "{name}": {layer} may include only {", ".join(allowed)}')
            elif not path.startswith("tests/"):
                verdict.check(False, f"{path}: belongs to no layer")

    pure = {path for path in sources if is_pure(texts[path])}
    # A header that says PURE speaks for its .c file too.
    pure |= {path[:-2] + ".c" for path in pure if path.endswith(".h") and path[:-2] + ".c" in texts}
    verdict.check(bool(pure), "no file is marked PURE: has the marker changed?")
    for path in sorted(pure):
        for number, quoted, name in wanted[path]:
            verdict.check(quoted or not IMPURE_DIRECT.match(name), f"{path}:{number}: PURE, but includes <{name}>")
        seen, queue = set(), [path]
        while queue:
            at = queue.pop()
            for _, quoted, name in wanted.get(at, ()):
                if quoted and name not in seen:
                    seen.add(name)
                    queue.append(name)
                elif not quoted:
                    verdict.check(not IMPURE_ANYHOW.match(name), f"{path}: PURE, but gets <{name}> by way of {at}")
    print(f"layers: {len(sources)} files, {len(pure)} of them PURE")
    verdict.exit()


main()
