"""The shipped configuration names every key, commented, with its default, and is accepted.  conf.py ROOT BUILD"""
import os
import re
import subprocess
import sys
import tempfile

import tree

# The fixed keys and their defaults.
KEYS = {
    "conf/fp9d.conf": ("fp9d", "daemon/head", {
        "daemon": {"socket": "/run/fp9d/control.sock", "state_dir": "/var/lib/fp9d", "log_level": "info", "admin_group": "",
                   "metrics_listen": ""},
        "fleet": {"local_ducks": "0", "local_memory": "", "local_prealloc": "no", "local_cores": "",
                  "local_link": "auto", "spin_us": "auto", "persistent_judge": "yes", "partials": "bf16",
                  "heartbeat_s": "2", "grace_s": "10", "deadline_s": "0"},
        'duck "NAME"': {"address": "HOST:PORT", "key_file": "", "plaintext": "no", "spare": "no"},
    }),
    "conf/fp9-duck.conf": ("fp9-duck", "daemon/duck", {
        "duck": {"listen": "127.0.0.1:7909", "key_file": "", "plaintext": "no", "memory": "", "prealloc": "no", "cores": "",
                 "huge_pages": "auto",
                 "spin_us": "auto", "name": ""},
    }),
}


def entries(text):
    """Section -> key -> value of the commented examples ("#key = value") as well as of live lines."""
    found, section = {}, None
    for line in text.splitlines():
        header = re.match(r"#?\[(.+)\]\s*$", line)
        if header:
            section = header.group(1)
            found.setdefault(section, {})
            continue
        pair = re.match(r"(#?)([a-z_]+)\s*=\s*(.*?)\s*$", line)
        if pair and section is not None:
            found[section].setdefault(pair.group(2), []).append((pair.group(1) == "#", pair.group(3)))
    return found


def check_config(program, text):
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
        file.write(text)
        file.flush()
        return subprocess.run([program, "--config", file.name, "--check-config"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=20)


def main():
    root, build = sys.argv[1:3]
    verdict = tree.Verdict("conf")
    for path, (name, folder, sections) in KEYS.items():
        program = tree.program(build, name)
        if not os.path.exists(os.path.join(root, path)):
            verdict.check(program is None, f"{path} is missing, though {name} is built")
            continue
        text = tree.read(root, path)
        found = entries(text)
        for section, keys in sections.items():
            if not verdict.check(section in found, f"{path}: no [{section}]"):
                continue
            for key, default in keys.items():
                given = found[section].get(key, [])
                verdict.check(len(given) == 1, f"{path}: [{section}] {key}: stands there {len(given)} times, expected once")
                for commented, value in given:
                    verdict.check(commented, f"{path}: [{section}] {key}: is not commented out")
                    verdict.check(value == default, f'{path}: [{section}] {key}: default "{value}", expected "{default}"')
            for key in found[section]:
                verdict.check(key in keys, f"{path}: [{section}] {key}: not a key this lint knows")
        if not program:
            print(f"conf: {name} is not there yet")
            continue
        shipped = check_config(program, text)
        if name == "fp9-duck":  # a start by it is refused, too: nobody's weights and activations go over a network in plaintext unasked
            verdict.check(shipped.returncode != 0 and "serves only with plaintext = yes" in shipped.stderr,
                          f"{path}: --check-config does not refuse to serve without TLS: {shipped.stderr.strip()}")
            text = text.replace("#plaintext = no", "plaintext = yes")
            shipped = check_config(program, text)
        verdict.check(shipped.returncode == 0, f"{path}: refused by --check-config: {shipped.stderr.strip()}")
        # The same with every comment taken away: each shown default must be a value the program takes.
        live = re.sub(r"^#(\[.+\]|[a-z_]+\s*=.*)$", r"\1", text, flags=re.M)
        if name == "fp9d":
            # TLS is the default and beyond what this version can do; it has to say so and not stumble over a key.
            live, _, duck = live.partition('[duck "NAME"]')
            duck = '[duck "NAME"]' + duck.replace("HOST:PORT", "127.0.0.1:7909")
            fleet = check_config(program, duck)
            verdict.check(fleet.returncode != 0 and "plaintext: this version has no TLS" in fleet.stderr,
                          f'{path}: [duck "NAME"]: --check-config does not refuse a link without TLS: {fleet.stderr.strip()}')
            fleet = check_config(program, duck.replace("plaintext = no", "plaintext = yes"))
            verdict.check(fleet.returncode == 0, f'{path}: [duck "NAME"]: refused by --check-config: {fleet.stderr.strip()}')
        opened = check_config(program, live)
        verdict.check(opened.returncode == 0, f"{path} with its comments removed: refused by --check-config: {opened.stderr.strip()}")
        wrong = check_config(program, live + "\nno_such_key = 1\n")
        verdict.check(wrong.returncode != 0 and "no_such_key" in wrong.stderr, f"{name}: takes an unknown key")
    verdict.exit()


main()
