#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes a web site of all guides, with a search. Can be started from any directory.
set -euo pipefail

usage() {
    cat <<'TEXT'
Usage: docs/site.sh [--serve PORT | --no-install] [OUT]

Makes a web site of all pages, with a search, in OUT/html (default: build/site): open OUT/html/index.html. Every warning is
an error, and so is a link that leads nowhere. Uses MkDocs from PyPI, in a virtual environment below ~/.cache/banyan (Debian's
package lacks scripts of its theme).

  --serve PORT  then serve it at http://127.0.0.1:PORT/ until it is interrupted (searching needs a server)
  --no-install  install nothing; without MkDocs end with code 77
  --help        print this help

Exit codes: 0 done, 1 a page is wrong (what is printed says which), 2 wrong use, 77 no MkDocs.
TEXT
}

port=
install=yes
[ -z "${BANYAN_NO_INSTALL:-}" ] || install=no
while [ $# -gt 0 ]; do
    case $1 in
    --serve)
        [[ ${2-} =~ ^[1-9][0-9]{0,4}$ ]] || { echo "docs/site.sh: --serve needs a port; try docs/site.sh --help" >&2; exit 2; }
        port=$2
        shift
        ;;
    --no-install) install=no ;;
    -h | --help)
        usage
        exit 0
        ;;
    -*)
        echo "docs/site.sh: unknown option '$1'; try docs/site.sh --help" >&2
        exit 2
        ;;
    *) break ;;
    esac
    shift
done
[ $# -le 1 ] || { echo "docs/site.sh: one folder at most; try docs/site.sh --help" >&2; exit 2; }
out=$(realpath -m "${1:-$(dirname "${BASH_SOURCE[0]}")/../build/site}")
cd "$(dirname "${BASH_SOURCE[0]}")/.."

requirements=docs/tools/requirements.txt
venv=${XDG_CACHE_HOME:-$HOME/.cache}/banyan/site-$(sha256sum "$requirements" | cut -c1-12)
if [ ! -e "$venv/ready" ]; then
    if [ "$install" = no ]; then
        echo "docs/site.sh: MkDocs is not installed: run docs/site.sh without --no-install" >&2
        exit 77
    fi
    rm -rf "$venv"
    python3 -m venv "$venv"
    if ! "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$requirements"; then
        echo "docs/site.sh: MkDocs cannot be installed from PyPI" >&2
        exit 77
    fi
    touch "$venv/ready"
fi

mkdir -p "$out"
export PYTHONDONTWRITEBYTECODE=1
python3 docs/tools/build_site.py stage "$out"
PYTHONPATH=docs/tools "$venv/bin/mkdocs" build --quiet --strict --clean -f "$out/mkdocs.yml"
python3 docs/tools/build_site.py check "$out/html"
echo "$out/html/index.html"
[ -z "$port" ] || exec python3 -m http.server --bind 127.0.0.1 --directory "$out/html" "$port"
