#!/bin/bash
# Runs a command beside a systemd of its own: PID 1 of new PID, mount, UTS, IPC and cgroup namespaces.
#
#   with_systemd.sh DESTDIR COMMAND [ARG ...]
#
# Nothing reaches the machine: /run, /tmp, /var/tmp, /var/log and /var/lib are private (a systemd that boots with the machine's own /tmp
# empties it), /etc is a copy that is thrown away, and DESTDIR, a "meson install" of the tree, is laid over /usr and that /etc.
# Exit status: the command's; 77 when this machine does not allow it.
set -uo pipefail

say() { echo "with_systemd: $*" >&2; }
[ $# -ge 2 ] || { say "usage: with_systemd.sh DESTDIR COMMAND [ARG ...]"; exit 2; }
destdir=$(readlink -f "$1"); shift
[ "$(id -u)" = 0 ] || { say "needs root"; exit 77; }
manager=/usr/lib/systemd/systemd
[ -x $manager ] || manager=/lib/systemd/systemd
[ -x $manager ] || { say "systemd is not installed"; exit 77; }
spaces=(--fork --kill-child=KILL --pid --mount --uts --ipc --cgroup)
unshare "${spaces[@]}" --mount-proc true 2>/dev/null || { say "namespaces are not permitted here"; exit 77; }

shelf=$(mktemp -d /dev/shm/fp9-systemd.XXXXXX) || exit 1
launcher=
finish() {
  if [ -n "$launcher" ]; then
    kill -KILL "$launcher" 2>/dev/null
    wait "$launcher" 2>/dev/null
  fi
  for _ in 1 2 3 4 5 6; do rm -rf "$shelf" 2>/dev/null && break; sleep 0.2; done
}
trap finish EXIT

cat >"$shelf/boot" <<'BOOT'
set -e
shelf=$1 destdir=$2 manager=$3
mount --make-rprivate /
mount --bind "$destdir" "$shelf/destdir"
# The installed files show themselves where the package would put them. /etc is a copy: users are added to it.
mkdir "$shelf/etc"
cp -a /etc/. "$shelf/etc/"
[ ! -d "$shelf/destdir/etc" ] || cp -a "$shelf/destdir/etc/." "$shelf/etc/"
rm -rf "$shelf/etc/systemd/system"
mkdir -p "$shelf/etc/systemd/system"
# Name look-up within, whatever the machine uses.
printf 'passwd: files\ngroup: files\nshadow: files\n' >"$shelf/etc/nsswitch.conf"
mount --bind "$shelf/etc" /etc
mount -t overlay overlay -o "lowerdir=$shelf/destdir/usr:/usr" /usr || { echo "an overlay over /usr is not permitted" >&2; exit 1; }
for units in "$shelf"/destdir/lib/systemd/system/* "$shelf"/destdir/usr/lib/systemd/system/*; do
  [ ! -f "$units" ] || cp "$units" /etc/systemd/system/
done
for d in /var/lib /var/log /run; do mount -t tmpfs -o mode=755 tmpfs $d; done
for d in /tmp /var/tmp; do mount -t tmpfs -o mode=1777 tmpfs $d; done
mkdir -p /run/lock /var/log/journal
: >"$shelf/mounted"
export container=fp9-test
unset NOTIFY_SOCKET LISTEN_FDS LISTEN_PID WATCHDOG_USEC
exec $manager --system --unit=basic.target --show-status=no --log-target=console
BOOT
mkdir "$shelf/destdir"
unshare "${spaces[@]}" --mount-proc bash "$shelf/boot" "$shelf" "$destdir" "$manager" >"$shelf/log" 2>&1 &
launcher=$!

inner=
for _ in $(seq 200); do
  inner=$(cat "/proc/$launcher/task/$launcher/children" 2>/dev/null | tr -d ' ')
  if [ -n "$inner" ] && [ -e "$shelf/mounted" ] && [ "$(cat "/proc/$inner/comm" 2>/dev/null)" = systemd ] &&
    nsenter -t "$inner" -p -m -u -i -C systemctl list-units >/dev/null 2>&1; then
    break
  fi
  kill -0 "$launcher" 2>/dev/null || { say "systemd could not be started here:"; tail -n 5 "$shelf/log" >&2; exit 77; }
  sleep 0.1
  inner=
done
[ -n "$inner" ] || { say "systemd did not come up:"; tail -n 20 "$shelf/log" >&2; exit 77; }
nsenter -t "$inner" -p -m -u -i -C systemctl is-system-running --wait >/dev/null 2>&1
nsenter -t "$inner" -p -m -u -i -C -- "$@"
