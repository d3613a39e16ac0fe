#!/usr/bin/env bash
# Builds and tests in a bare root of Debian 12: what a newcomer's container looks like. Once per release; as root, with
# debootstrap, some 10 GB in TMPDIR (or /var/tmp) and half an hour.
#
#   tests/bare_root.sh                      # launch/quickstart.sh, then tests/run.sh
#   tests/bare_root.sh tests/run.sh -R cli  # other words instead
#
# The root has what debootstrap's minbase has, and so no /etc/hosts: mpirun then asks a name server what localhost is
# (launch/findings.h). This checkout is copied into it, without what git ignores. Packages come from the mirror that this
# machine's own apt uses; mounts and processes end with the script, and the root is removed however it ends
# (tests/support/debian_root.sh).
set -euo pipefail
case "${1:-}" in
  -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;;
esac
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=tests/support/debian_root.sh
. "$top/tests/support/debian_root.sh"
(($#)) || set -- bash -c 'launch/quickstart.sh && tests/run.sh'

# shellcheck disable=SC2119
make_debian_root
# For the Python package's one requirement.
[[ ! -f /etc/pip.conf ]] || cp /etc/pip.conf "$root/etc/pip.conf"
mkdir -p "$root/work"
git -C "$top" ls-files -z --cached --others --exclude-standard |
  tar -C "$top" --null --files-from - --ignore-failed-read -cf - | tar -C "$root/work" --no-same-owner -xf -

echo "== $*" >&2
# shellcheck disable=SC2016
in_debian_root sh -c 'cd /work && exec "$@"' _ "$@"
