#!/usr/bin/env bash
# Builds and tests in a bare root of Debian 12: what a newcomer's container looks like. Once per release; as root, with
# debootstrap, some 10 GB in TMPDIR (or /var/tmp) and half an hour.
#
#   tests/bare_root.sh                      # launch/quickstart.sh, then tests/run.sh
#   tests/bare_root.sh tests/run.sh -R cli  # other words instead
#
# The root has what debootstrap's minbase has, and so no /etc/hosts: mpirun then asks a name server what localhost is
# (launch/findings.h). This checkout is copied into it, without what git ignores. Packages come from the mirror that this
# machine's own apt uses, with its settings. /proc, /dev and /sys are mounted in a namespace of the script's own, which
# ends with it, as do all processes in it; the root is removed however it ends.
set -euo pipefail
case "${1:-}" in
  -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;;
esac
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
suite=bookworm
((EUID == 0)) || { echo "bare_root.sh: a root file system is made, mounted and entered by root alone" >&2; exit 2; }
command -v debootstrap >/dev/null || { echo "bare_root.sh: apt-get install debootstrap" >&2; exit 2; }
(($#)) || set -- bash -c 'launch/quickstart.sh && tests/run.sh'

targets=$(apt-get indextargets --format '$(SITE) $(RELEASE) $(COMPONENT)' "Created-By: Packages" | sort -u)
mirror=$(awk -v suite="$suite" '$2 == suite && $3 == "main" { print $1; exit }' <<<"$targets")
[[ -n "$mirror" ]] || { echo "bare_root.sh: this machine's apt knows no mirror of Debian 12 ($suite)" >&2; exit 2; }

folder=$(mktemp -d -p "${TMPDIR:-/var/tmp}" penstock-bare-root.XXXXXX)
trap 'rm -rf --one-file-system "$folder"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
root=$folder/root

echo "== root: $suite, minbase" >&2
# In a namespace, too: what debootstrap mounts would stay where it is interrupted.
unshare --mount --pid --fork --kill-child debootstrap --variant=minbase "$suite" "$root" "$mirror" >"$folder/log" 2>&1 || {
  tail -n 20 "$folder/log" >&2
  exit 1
}
rm -f "$root/etc/apt/sources.list"
awk -v suite="$suite" 'index($2, suite) == 1 && $3 == "main" { print "deb", $1, $2, $3 }' <<<"$targets" \
  >"$root/etc/apt/sources.list.d/mirror.list"
# How to reach it: proxies, dates. And the same of pip, for the Python package's one requirement.
apt-config dump | grep '^Acquire::' >"$root/etc/apt/apt.conf.d/90acquire" || true
[[ ! -f /etc/pip.conf ]] || cp /etc/pip.conf "$root/etc/pip.conf"
mkdir -p "$root/work"
git -C "$top" ls-files -z --cached --others --exclude-standard |
  tar -C "$top" --null --files-from - --ignore-failed-read -cf - | tar -C "$root/work" --no-same-owner -xf -

passed=()
while IFS= read -r name; do passed+=("$name=${!name}"); done < <(compgen -e | grep -iE '^((https?|no|all)_proxy|pip_.*)$' || true)
echo "== $*" >&2
# shellcheck disable=SC2016
unshare --mount --pid --fork --kill-child --propagation private bash -euc '
  root=$1
  shift
  mount -t proc proc "$root/proc"
  mount --rbind /dev "$root/dev"
  mount --rbind /sys "$root/sys"
  mount -t tmpfs tmpfs "$root/tmp"
  exec chroot "$root" "$@"
' _ "$root" env -i HOME=/root TERM="${TERM:-dumb}" PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
  "${passed[@]}" sh -c 'cd /work && exec "$@"' _ "$@"
