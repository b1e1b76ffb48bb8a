"""Runs beside a real systemd (test_systemd.py copies it there): fp9d.service with two local ducks and fp9-duck.service beside it. Every
step says what it is before it runs; the first that fails ends it."""
import json
import os
import random
import shutil
import signal
import subprocess
import time

MODEL = "/var/lib/models/shakespeare"
LAYERS = 4
ROUNDS = 10
DUCK_CONF = "[duck]\nlisten = 127.0.0.1:7909\nmemory = 64M\nname = kitchen\n"
HEAD_CONF = '[fleet]\nlocal_ducks = {}\nlocal_memory = 64M\n[duck "kitchen"]\naddress = 127.0.0.1:7909\nplaintext = yes\n'


def step(what):
    print(f"step: {what}", flush=True)


def run(*args, check=True):
    done = subprocess.run(args, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
    assert not check or done.returncode == 0, f"{' '.join(args)}: {done.returncode}: {done.stdout} {done.stderr}"
    return done


def ctl(*args, check=True):
    done = run("fp9ctl", "--json", *args, check=check)
    return json.loads(done.stdout) if done.stdout.strip() else {}


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def field(unit, name):
    return run("systemctl", "show", unit, "-P", name).stdout.strip()


def journal(unit):
    return run("journalctl", "-u", unit, "--no-pager", "-o", "cat").stdout


def wait(what, condition, seconds=20):
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.02)


def boot_ids():
    return {d["name"]: d["boot_id"] for d in ctl("duck", "list")["ducks"]}


def ready():
    status = ctl("status", check=False)
    return status.get("state") == "ready" and [m["state"] for m in status["models"]] == ["ready"]


def slots():
    return sorted((s["duck"], s["layer"], s["rank"], s["state"], s["checksum"]) for s in ctl("cache", "list")["slots"])


def outputs():
    bits = []
    for layer in range(LAYERS):
        ctl("decode", "shakespeare", "--layer", str(layer), "--input", f"{MODEL}/reference.safetensors", "--prefix", f"layers.{layer}.mlp.",
            "--output", "/tmp/out")
        with open("/tmp/out", "rb") as file:
            bits.append(file.read())
    return bits


def load():
    return ctl("load", MODEL, "--name", "shakespeare", "--tp", "3", "--multiple-of", "64")


def pids(name):
    return [int(pid) for pid in run("pgrep", "-x", name, check=False).stdout.split()]


def main_pid(unit):
    return int(field(unit, "MainPID"))


def active(unit):
    return field(unit, "ActiveState") == "active"


def done_jobs():
    return [line for line in journal("fp9d").splitlines() if line.startswith("job: ") and " of shakespeare done: " in line]


class Truth:
    """What an undisturbed load gave."""

    def __init__(self):
        assert load()["cache"] == "miss"
        self.slots, self.outputs, self.ids = slots(), outputs(), boot_ids()
        assert len(self.slots) == 3 * LAYERS and all(s[3] == "finished" for s in self.slots)

    def same(self, ids=True):
        assert slots() == self.slots
        assert outputs() == self.outputs
        assert not ids or boot_ids() == self.ids, (boot_ids(), self.ids)
        again = load()
        assert (again["cache"], again["bytes_read"], again["bytes_sent"]) == ("hit", 0, 0), again


def disturb(what, act, truth):
    """act() ends processes; all is back by itself without a byte read or sent."""
    step(what)
    before, seen = len(done_jobs()), {unit: main_pid(unit) for unit in ("fp9d", "fp9-duck")}
    ended = act()
    for unit in ended:
        wait(f"{unit} to be started again", lambda unit=unit: main_pid(unit) not in (0, seen[unit]) and active(unit))
    wait("everything to be ready", ready)
    truth.same()
    for line in done_jobs()[before:]:
        assert "cache hit" in line and " 0 bytes read, 0 sent" in line, line


def kill(*victims):
    for pid in victims:
        os.kill(pid, signal.SIGKILL)


def prepare():
    run("systemd-sysusers")
    write("/etc/fp9/fp9d.conf", HEAD_CONF.format(2))
    write("/etc/fp9/fp9-duck.conf", DUCK_CONF)
    for unit in ("fp9d", "fp9-duck"):  # the shipped second is for crash loops; here it would only be waited for
        write(f"/etc/systemd/system/{unit}.service.d/quick.conf", "[Service]\nRestartSec=50ms\n")
    os.makedirs("/var/lib/models", exist_ok=True)
    shutil.copytree("/etc/fp9/test-model", MODEL)
    run("chmod", "-R", "a+rX", "/var/lib/models")
    run("systemctl", "daemon-reload")


def unit_tests():
    step("units are valid")
    said = run("systemd-analyze", "verify", "--man=no", "fp9d.service", "fp9-duck.service", check=False)
    assert "fp9" not in said.stdout + said.stderr, said.stdout + said.stderr

    step("fp9-duck does not serve in plaintext without being told to, and says so")
    assert run("systemctl", "start", "fp9-duck.service", check=False).returncode != 0
    run("systemctl", "stop", "fp9-duck.service")
    assert "plaintext = yes" in journal("fp9-duck"), journal("fp9-duck")
    write("/etc/fp9/fp9-duck.conf", DUCK_CONF + "plaintext = yes\n")

    step("Type=notify; systemd has the memfds")
    run("systemctl", "start", "fp9-duck.service", "fp9d.service")
    assert field("fp9-duck", "Type") == "notify" and field("fp9-duck", "NFileDescriptorStore") == "1"
    assert field("fp9d", "NFileDescriptorStore") == "2", field("fp9d", "NFileDescriptorStore")
    assert os.stat(f"/proc/{main_pid('fp9-duck')}").st_uid != 0
    wait("three ducks", lambda: [d["state"] for d in ctl("duck", "list")["ducks"]] == ["up"] * 3)
    addresses = {d["name"]: d["address"] for d in ctl("duck", "list")["ducks"]}
    assert addresses == {"local0": "local", "local1": "local", "kitchen": "127.0.0.1:7909"}


def restarts(truth):
    def restart(unit):
        def act():
            run("systemctl", "restart", unit)
            return [unit]
        return act

    def crash(*units):
        def act():
            kill(*(main_pid(unit) for unit in units))
            return units
        return act

    def crash_all():
        kill(*pids("fp9d"), *pids("fp9-duck"))
        return ["fp9d", "fp9-duck"]

    def terminate():
        os.kill(main_pid("fp9-duck"), signal.SIGTERM)
        os.kill(main_pid("fp9d"), signal.SIGTERM)
        return ["fp9d", "fp9-duck"]

    disturb("restart of fp9d", restart("fp9d"), truth)
    disturb("restart of fp9-duck", restart("fp9-duck"), truth)
    disturb("fp9d is killed", crash("fp9d"), truth)
    disturb("fp9-duck is killed", crash("fp9-duck"), truth)
    disturb("every process of fp9 is killed at once", crash_all, truth)
    disturb("both are told to end by somebody who is not systemd", terminate, truth)
    assert field("fp9-duck", "NFileDescriptorStore") == "1" and field("fp9d", "NFileDescriptorStore") == "2"

    def upgrade():
        os.makedirs("/var/lib/next", exist_ok=True)
        for program in ("fp9d", "fp9-duck"):
            shutil.copy(shutil.which(program), f"/var/lib/next/{program}")
            write(f"/etc/systemd/system/{program}.service.d/next.conf",
                  f"[Service]\nExecStart=\nExecStart=/var/lib/next/{program} --config /etc/fp9/{program}.conf\n")
        run("systemctl", "daemon-reload")
        run("systemctl", "restart", "fp9-duck", "fp9d")
        return ["fp9d", "fp9-duck"]

    disturb("upgrade of both", upgrade, truth)
    assert os.readlink(f"/proc/{main_pid('fp9d')}/exe") == "/var/lib/next/fp9d"
    assert all(os.readlink(f"/proc/{pid}/exe") == "/var/lib/next/fp9-duck" for pid in pids("fp9-duck"))


def killed_in_loads(truth):
    seed = random.SystemRandom().randrange(1 << 32)
    chance = random.Random(seed)
    begun = time.monotonic()
    ctl("invalidate-cache", "--all")
    load()
    usual = time.monotonic() - begun
    for number in range(ROUNDS):
        victim, pause = chance.choice(["fp9d", "fp9-duck", "both"]), chance.uniform(0, usual)
        step(f"seed {seed}, round {number}: {victim} killed {pause * 1e3:.0f} ms into a load")
        losses = journal("fp9d").count("kitchen: lost") + journal("fp9d").count("serves /run")
        ctl("invalidate-cache", "--all")
        ctl("load", MODEL, "--name", "shakespeare", "--tp", "3", "--multiple-of", "64", "--no-wait")
        time.sleep(pause)
        kill(*(main_pid(unit) for unit in ("fp9d", "fp9-duck") if victim in (unit, "both")))
        wait("it to be noticed", lambda: journal("fp9d").count("kitchen: lost") + journal("fp9d").count("serves /run") > losses)
        wait("everything to be ready", ready)
        assert sorted(s[1:] for s in slots()) == sorted(s[1:] for s in truth.slots)
        assert outputs() == truth.outputs
        assert boot_ids() == truth.ids


def ends(truth):
    step("a full stop of fp9-duck ends its weights and no others")
    run("systemctl", "stop", "fp9-duck")
    assert field("fp9-duck", "NFileDescriptorStore") == "0"
    wait("the loss", lambda: ctl("status")["state"] == "degraded")
    run("systemctl", "start", "fp9-duck")
    wait("everything to be ready", ready)
    ids = boot_ids()
    assert ids["kitchen"] != truth.ids["kitchen"] and all(ids[n] == truth.ids[n] for n in ("local0", "local1")), (ids, truth.ids)
    assert "cache partial" in done_jobs()[-1], done_jobs()[-1]
    assert sorted(s[1:] for s in slots()) == sorted(s[1:] for s in truth.slots) and outputs() == truth.outputs

    step("a full stop of fp9d ends those of the local ducks; they are prepared again by themselves")
    run("systemctl", "stop", "fp9d.socket", "fp9d")
    run("systemctl", "start", "fp9d")
    wait("everything to be ready", ready)
    again = boot_ids()
    assert again["kitchen"] == ids["kitchen"] and all(again[n] != ids[n] for n in ("local0", "local1")), (ids, again)
    assert outputs() == truth.outputs

    step("what nobody uses any more is given back")
    write("/etc/fp9/fp9d.conf", HEAD_CONF.format(1))
    run("systemctl", "restart", "fp9d")
    wait("one descriptor", lambda: field("fp9d", "NFileDescriptorStore") == "1")

    step("a clean stop leaves nothing")
    run("systemctl", "stop", "fp9d.socket", "fp9d", "fp9-duck")
    assert field("fp9d", "Result") == "success" and field("fp9-duck", "Result") == "success"
    assert not pids("fp9d") and not pids("fp9-duck")


def main():
    prepare()
    unit_tests()
    step("an undisturbed load")
    truth = Truth()
    restarts(truth)
    killed_in_loads(truth)
    ends(truth)
    print("all steps done")


try:
    main()
except Exception:
    for name in ("fp9d", "fp9-duck"):
        print(f"---- journal of {name}\n" + "\n".join(journal(name).splitlines()[-40:]))
    raise
