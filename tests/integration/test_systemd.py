"""The shipped units, installed and run by a real systemd in namespaces of its own."""
import os
import shutil
import subprocess

import pytest

from support.daemon import SANITIZED
from support.model import MODEL

HERE = os.path.dirname(os.path.abspath(__file__))
SKIP = 77

# Runs inside. Every step says what it is before it runs; the first that fails ends it.
SCRIPT = r"""
set -euo pipefail
step() { echo "step: $*"; }
fail() {
  echo "FAILED: $*"
  systemctl status fp9d.service fp9d.socket --no-pager -l || true
  journalctl -u fp9d --no-pager -n 60 || true
  exit 1
}
field() { systemctl show fp9d.service -P "$1"; }
trap 'fail "a command of the step above"' ERR

step "user and group"
systemd-sysusers
id fp9 >/dev/null
printf '[fleet]\nlocal_ducks = 2\nlocal_memory = 64M\n' >/etc/fp9/fp9d.conf
systemctl daemon-reload

step "units are valid"
systemd-analyze verify --man=no fp9d.service fp9d.socket 2>&1 | grep -i 'fp9d' && fail "systemd-analyze verify has something to say"

step "enable and start the socket alone"
systemctl enable fp9d.socket >/dev/null 2>&1
systemctl start fp9d.socket
[ "$(systemctl is-active fp9d.socket)" = active ]
[ "$(systemctl is-active fp9d.service || true)" = inactive ]
[ "$(stat -c '%U:%G %a' /run/fp9d/control.sock)" = "root:fp9 660" ]

step "the first client starts the daemon"
fp9ctl --json status >/tmp/status || fail "fp9ctl status"
grep -q '"version"' /tmp/status
[ "$(systemctl is-active fp9d.service)" = active ]

step "Type=notify, watchdog"
[ "$(field Type)" = notify ]
[ "$(field WatchdogUSec)" != 0 ] && [ "$(field WatchdogUSec)" != infinity ]
[ "$(field NRestarts)" = 0 ]
pid=$(field MainPID)
[ "$(cat /proc/$pid/comm)" = fp9d ]
[ "$(stat -c %U /proc/$pid)" = fp9 ]

step "ducks come up and a model runs"
for _ in $(seq 100); do
  fp9ctl --json duck list >/tmp/ducks
  [ "$(grep -o '"state" *: *"up"' /tmp/ducks | wc -l)" = 2 ] && break
  sleep 0.1
done
[ "$(grep -o '"state" *: *"up"' /tmp/ducks | wc -l)" = 2 ] || fail "ducks: $(cat /tmp/ducks)"
mkdir -p /var/lib/models
cp -r /run/fp9-model /var/lib/models/shakespeare
chmod -R a+rX /var/lib/models
fp9ctl load /var/lib/models/shakespeare --name shakespeare --tp 2 --multiple-of 32
fp9ctl decode shakespeare --layer 1 --input /var/lib/models/shakespeare/reference.safetensors --prefix layers.1.mlp. --output /tmp/out1

step "the watchdog is fed: outlive it"
sleep 3
[ "$(field NRestarts)" = 0 ]
[ "$(field WatchdogTimestampMonotonic)" != 0 ]

step "restart ten times, each answers at once through the kept socket"
inode=$(stat -c %i /run/fp9d/control.sock)
for n in $(seq 10); do
  systemctl restart fp9d.service
  fp9ctl --json status >/dev/null || fail "status after restart $n"
  [ "$(stat -c %i /run/fp9d/control.sock)" = "$inode" ] || fail "restart $n replaced the socket"
done

step "the registered model is back with the same bits"
for _ in $(seq 200); do
  fp9ctl --json model list >/tmp/models
  grep -q '"state" *: *"ready"' /tmp/models && break
  sleep 0.1
done
fp9ctl decode shakespeare --layer 1 --input /var/lib/models/shakespeare/reference.safetensors --prefix layers.1.mlp. --output /tmp/out2
cmp /tmp/out1 /tmp/out2

step "kill -9: systemd starts it again"
kill -9 "$(field MainPID)"
for _ in $(seq 50); do [ "$(field NRestarts)" = 1 ] && [ "$(systemctl is-active fp9d)" = active ] && break; sleep 0.1; done
fp9ctl --json status >/dev/null
[ "$(field NRestarts)" = 1 ]

step "clean stop"
systemctl stop fp9d.socket fp9d.service
[ "$(field Result)" = success ]
[ "$(field ExecMainStatus)" = 0 ]
pgrep -x 'fp9d|fp9-duck' && fail "processes are left"

step "without the socket unit fp9d makes the socket itself and removes it"
rm -f /run/fp9d/control.sock
sed -i '/fp9d.socket/d' /etc/systemd/system/fp9d.service
systemctl daemon-reload
systemctl start fp9d.service
fp9ctl --json status >/dev/null
systemctl stop fp9d.service
[ ! -e /run/fp9d/control.sock ] || fail "the socket is left"

step "a wrong configuration fails with its reason in the journal"
echo 'nonsense = 1' >>/etc/fp9/fp9d.conf
systemctl start fp9d.service 2>/dev/null && fail "started with a wrong configuration"
systemctl stop fp9d.service
trap - ERR
echo "all steps done"
"""


def install_and_run(build, tmp_path, name, text, *command):
    """Installs the build, lays it over the system of a systemd of its own, and runs the script there by `command`."""
    destdir = tmp_path / "installed"
    subprocess.run(["meson", "install", "-C", build, "--no-rebuild", "--destdir", str(destdir)], check=True, stdin=subprocess.DEVNULL,
                   stdout=subprocess.DEVNULL, timeout=120)
    # The names inside are those of the installed system; only the model comes from outside, by way of /etc, which is copied.
    shutil.copytree(MODEL, destdir / "etc" / "fp9" / "test-model")
    (destdir / "etc" / "fp9" / name).write_text(text)
    done = subprocess.run([os.path.join(HERE, "with_systemd.sh"), str(destdir), *command, f"/etc/fp9/{name}"], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240)
    print(done.stdout)
    if done.returncode == SKIP:
        pytest.skip(done.stdout.strip().splitlines()[-1])
    assert done.returncode == 0 and "all steps done" in done.stdout, done.stdout


@pytest.mark.skipif(SANITIZED, reason="installs the plain build")
def test_units(build, tmp_path):
    install_and_run(build, tmp_path, "test.sh", SCRIPT.replace("/run/fp9-model", "/etc/fp9/test-model"), "bash")


@pytest.mark.skipif(SANITIZED, reason="installs the plain build")
def test_weights_survive(build, tmp_path):
    """Everything that a restart, a crash or an upgrade may do to fp9d and fp9-duck, and what ends the weights."""
    with open(os.path.join(HERE, "support", "survival_inside.py"), encoding="utf-8") as file:
        install_and_run(build, tmp_path, "survival.py", file.read(), "/usr/bin/python3")


@pytest.mark.skipif(SANITIZED, reason="installs the plain build")
def test_members_under_a_quota(build, tmp_path):
    """Kernel threads by CPUQuota= and the CPUs that are allowed, without spinning a quota away."""
    with open(os.path.join(HERE, "support", "quota_inside.py"), encoding="utf-8") as file:
        install_and_run(build, tmp_path, "quota.py", file.read(), "/usr/bin/python3")
