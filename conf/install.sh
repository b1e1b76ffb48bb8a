#!/bin/sh
# Run by "meson install": install.sh FOLDER FILE... A configuration that somebody has changed is kept; the new one lies beside it, as
# FILE.new. (meson shows nothing of what a script says.)
set -eu
folder=${MESON_INSTALL_DESTDIR_PREFIX%"$MESON_INSTALL_PREFIX"}$1
shift
mkdir -p "$folder"
for file; do
  to=$folder/$(basename "$file")
  if [ -e "$to" ]; then
    cmp -s "$file" "$to" && continue
    to=$to.new
  fi
  install -m 644 "$file" "$to"
done
