#!/usr/bin/python3
"""Runs beside a real systemd (with_systemd.sh): a local duck has as many kernel threads as fp9d.service's CPUQuota= and CPUs feed, rounded
down, and does not spin its quota away. Every step says what it is before it runs; the first that fails ends it."""
import json
import os
import subprocess
import sys
import time

MODEL = "/etc/fp9/test-model"
DROP_IN = "/etc/systemd/system/fp9d.service.d/test.conf"


def run(*args):
    done = subprocess.run(list(map(str, args)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=60)
    assert done.returncode == 0, f"{args}: {done.returncode}: {done.stdout} {done.stderr}"
    return done.stdout


def ctl(*args):
    return json.loads(run("fp9ctl", "--json", *args))


def start(*settings):
    """fp9d.service with these settings: its only duck's entry."""
    print("step:", *settings or ["without settings"], flush=True)
    os.makedirs(os.path.dirname(DROP_IN), exist_ok=True)
    with open(DROP_IN, "w", encoding="utf-8") as file:
        file.write("[Service]\n" + "\n".join(settings) + "\n")
    run("systemctl", "daemon-reload")
    run("systemctl", "restart", "fp9d.service")
    deadline = time.monotonic() + 20
    while True:
        ducks = ctl("duck", "list")["ducks"]
        models = ctl("model", "list")["models"]
        if ducks and ducks[0]["state"] == "up" and all(model["state"] == "ready" for model in models):
            return ducks[0]
        assert time.monotonic() < deadline, (ducks, models)
        time.sleep(0.05)


def main_pid():
    return int(run("systemctl", "show", "fp9d.service", "-P", "MainPID"))


def duck_pid():
    (pid,) = open(f"/proc/{main_pid()}/task/{main_pid()}/children", encoding="utf-8").read().split()
    return int(pid)


def throttled():
    """(periods, those in which the group's quota was used up), whichever version of control groups this is."""
    for line in open(f"/proc/{main_pid()}/cgroup", encoding="utf-8"):
        _, controllers, path = line.strip().split(":", 2)
        for folder in (["/sys/fs/cgroup/" + controllers] if "cpu" in controllers.split(",") else [] if controllers else ["/sys/fs/cgroup"]):
            try:
                words = dict(line.split() for line in open(f"{folder}{path}/cpu.stat", encoding="utf-8"))
            except OSError:
                continue
            if "nr_throttled" in words:
                return int(words["nr_periods"]), int(words["nr_throttled"])
    print("SKIP: no control group with a quota here")
    sys.exit(77)


def cpu_seconds(pid):
    text = open(f"/proc/{pid}/stat", encoding="utf-8").read()
    return sum(map(int, text[text.rindex(")") + 2:].split()[11:13])) / os.sysconf("SC_CLK_TCK")


def bits():
    target = "/tmp/quota-out"
    run("fp9ctl", "prefill", "shakespeare", "--layer", 1, "--input", f"{MODEL}/reference.safetensors", "--prefix", "layers.1.mlp.",
        "--output", target)
    return open(target, "rb").read()


def main():
    run("systemd-sysusers")
    cpus = len(os.sched_getaffinity(0))
    with open("/etc/fp9/fp9d.conf", "w", encoding="utf-8") as file:
        file.write("[fleet]\nlocal_ducks = 1\nlocal_memory = 64M\n")
    run("cp", "-r", MODEL, "/var/lib/model")
    run("chmod", "-R", "a+rX", "/var/lib/model")

    duck = start()
    assert duck["cores"] == cpus, duck
    ctl("load", "/var/lib/model", "--name", "shakespeare", "--tp", 1, "--multiple-of", 32)
    want = bits()

    assert start("CPUQuota=150%")["cores"] == 1
    assert bits() == want
    before, throttled_before = throttled()
    told = ctl("bench", "shakespeare", "--tokens", 3000)
    after, throttled_after = throttled()
    print(f"  modes {told['modes']}, {after - before} periods, {throttled_after - throttled_before} of them throttled")
    assert told["modes"] == [0, 1], told
    # One thread at work at a time, in a quota for one and a half: two that spin for each other would be stopped in most periods.
    assert after > before and throttled_after - throttled_before <= (after - before) / 4

    print("step: a session that is open and idle costs nothing", flush=True)
    with subprocess.Popen(["fp9ctl", "bench", "shakespeare", "--tokens", "1000000"], stdin=subprocess.DEVNULL,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as client:
        try:
            deadline = time.monotonic() + 20
            while not any(s["steps"] for s in ctl("session", "list")["sessions"]):
                assert time.monotonic() < deadline, "no session"
                time.sleep(0.02)
            os.kill(client.pid, 19)  # SIGSTOP: the session stays open, nothing comes
            time.sleep(0.2)
            used = cpu_seconds(duck_pid())
            time.sleep(1)
            used = cpu_seconds(duck_pid()) - used
            print(f"  {used:.2f} s of CPU in a second")
            assert used <= 0.1
        finally:
            client.kill()

    assert start("CPUQuota=50%")["cores"] == 1  # less than one CPU is still a duck
    assert bits() == want
    assert start(f"CPUQuota={100 * cpus + 50}%")["cores"] == cpus  # more than there is
    assert start("CPUAffinity=0")["cores"] == 1
    assert bits() == want

    print("step: a cpuset", flush=True)
    start("AllowedCPUs=0")
    allowed = len(os.sched_getaffinity(main_pid()))  # all of them where systemd has no cpuset controller
    assert ctl("duck", "list")["ducks"][0]["cores"] == allowed, allowed
    print(f"  AllowedCPUs=0 leaves {allowed} CPUs")
    print("all steps done")


if __name__ == "__main__":
    try:
        main()
    except (AssertionError, subprocess.SubprocessError, OSError, ValueError) as error:
        print(f"FAILED: {type(error).__name__}: {error}")
        subprocess.run(["journalctl", "-u", "fp9d", "--no-pager", "-n", "40"], check=False)
        sys.exit(1)
