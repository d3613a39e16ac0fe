# A root file system of Debian 12, made by debootstrap, and commands in it. Sourced by scripts that root starts.
#
#   . tests/support/debian_root.sh
#   make_debian_root python3-venv           # packages besides minbase; sets `folder`, which is removed at the end, and `root` in it
#   in_debian_root --no-network sh -c 'cd /work && …'
#
# Packages come from the mirror that this machine's own apt uses, with its settings. debootstrap and the commands run in
# namespaces of their own, which end with them, as do all mounts and processes in there.
# shellcheck shell=bash

_suite=bookworm
_script=$(basename "$0")
((EUID == 0)) || { echo "$_script: a root file system is made, mounted and entered by root alone" >&2; exit 2; }
command -v debootstrap >/dev/null || { echo "$_script: apt-get install debootstrap" >&2; exit 2; }

make_debian_root() {
  local targets mirror
  # shellcheck disable=SC2016
  targets=$(apt-get indextargets --format '$(SITE) $(RELEASE) $(COMPONENT)' "Created-By: Packages" | sort -u)
  mirror=$(awk -v suite="$_suite" '$2 == suite && $3 == "main" { print $1; exit }' <<<"$targets")
  [[ -n "$mirror" ]] || { echo "$_script: this machine's apt knows no mirror of Debian 12 ($_suite)" >&2; exit 2; }
  folder=$(mktemp -d -p "${TMPDIR:-/var/tmp}" penstock-bare-root.XXXXXX)
  trap 'rm -rf --one-file-system "$folder"' EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  root=$folder/root
  local include
  include=$(IFS=, && echo "$*")
  echo "== root: $_suite, minbase${*:+ $*}" >&2
  # In a namespace, too: what debootstrap mounts would stay where it is interrupted.
  unshare --mount --pid --fork --kill-child debootstrap --variant=minbase ${include:+"--include=$include"} "$_suite" "$root" "$mirror" \
    >"$folder/log" 2>&1 || {
    tail -n 20 "$folder/log" >&2
    exit 1
  }
  rm -f "$root/etc/apt/sources.list"
  awk -v suite="$_suite" 'index($2, suite) == 1 && $3 == "main" { print "deb", $1, $2, $3 }' <<<"$targets" \
    >"$root/etc/apt/sources.list.d/mirror.list"
  # How to reach it: proxies, dates.
  apt-config dump | grep '^Acquire::' >"$root/etc/apt/apt.conf.d/90acquire" || true
}

in_debian_root() {  # [--no-network] COMMAND…
  local net=()
  [[ $1 != --no-network ]] || { net=(--net); shift; }
  local passed=() name
  while IFS= read -r name; do passed+=("$name=${!name}"); done < <(compgen -e | grep -iE '^((https?|no|all)_proxy|pip_.*)$' || true)
  # shellcheck disable=SC2016
  unshare --mount --pid "${net[@]}" --fork --kill-child --propagation private bash -euc '
    root=$1
    [[ $2 == 0 ]] || ip link set lo up
    shift 2
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
    mount --rbind /sys "$root/sys"
    mount -t tmpfs tmpfs "$root/tmp"
    exec chroot "$root" "$@"
  ' _ "$root" "${#net[@]}" env -i HOME=/root TERM="${TERM:-dumb}" PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    "${passed[@]}" "$@"
}
