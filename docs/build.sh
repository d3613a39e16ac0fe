#!/usr/bin/env bash
# Builds the documents as a site, with strict links, in build/docs: open build/docs/index.html.
#
#   docs/build.sh            # makes build/docs_venv with mkdocs-material from PyPI the first time (170 MB)
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$top"
requirement="mkdocs-material==9.8.2 mkdocs==1.6.1"
venv=build/docs_venv
if [[ "$(cat "$venv/requirement" 2>/dev/null)" != "$requirement" ]]; then
  python3 -m venv "$venv"
  # shellcheck disable=SC2086
  "$venv/bin/pip" install --quiet --disable-pip-version-check $requirement
  echo "$requirement" >"$venv/requirement"
fi
"$venv/bin/python" docs/hooks.py build/docs_pages
NO_MKDOCS_2_WARNING=1 "$venv/bin/mkdocs" build --strict --clean
echo "$top/build/docs/index.html"
