# SPDX-License-Identifier: Apache-2.0
# Debian packages: part of deploy/package.sh, which sets root, out, work, version, epoch, cuda, jobs.
#
#   build/packages/deb/source/         a copy of the tree, with deploy/debian as its debian/
#   build/packages/deb/source/obj-*/   what debhelper compiles there; kept
#   build/packages/deb/*.deb           made by dpkg, moved to the output folder when all is well
need dpkg-buildpackage dpkg-dev
need dh debhelper
need dh_python3 dh-python

copy_source() {
    local fresh=$work/fresh
    rm -rf "$fresh"
    mkdir -p "$work/source" "$fresh"
    source_files | tar -C "$root" --null --files-from=- --create | tar -C "$fresh" --extract --touch
    cp -r "$root/deploy/debian" "$fresh/debian"
    # What is as it was keeps its time, and what is not is newer than all that was compiled: also a file that was altered
    # while that was compiled, from the copy before.
    (cd "$fresh" && find . -type f -print0) | while IFS= read -r -d '' f; do
        if cmp -s "$fresh/$f" "$work/source/$f"; then touch -r "$work/source/$f" "$fresh/$f"; fi
    done
    find "$work/source" -mindepth 1 -maxdepth 1 -name 'obj-*' -exec mv -t "$fresh" {} +
    rm -rf "$work/source"
    mv "$fresh" "$work/source"
    cat >"$work/source/debian/changelog" <<TEXT
banyan ($version) unstable; urgency=medium

  * CHANGELOG.md says what is new.

 -- The Banyan maintainers <maintainers@users.noreply.a-seed-d3ce4376.example>  $(date -u -R -d "@$epoch")
TEXT
}

build() {
    local profiles=
    [ "$cuda" = off ] || profiles=pkg.banyan.cuda
    rm -f "$work"/*.deb "$work"/*.buildinfo "$work"/*.changes
    if ! (cd "$work/source" && DEB_BUILD_PROFILES=$profiles DEB_BUILD_OPTIONS="parallel=$jobs${DEB_BUILD_OPTIONS:+ $DEB_BUILD_OPTIONS}" \
        dpkg-buildpackage --build=binary --no-pre-clean --no-sign --root-command=) >"$work/log" 2>&1; then
        tail -n 40 "$work/log" >&2
        die 1 "dpkg-buildpackage failed; the end of its output is above, all of it is in $work/log"
    fi
}

copy_source
build
# What stood in our own folder is of another version; a folder that --out names is left alone.
[ "$out" != "$root/build/packages" ] || rm -f "$out"/*.deb "$out"/*.changes "$out"/*.buildinfo
for package in "$work"/*.deb "$work"/*.changes "$work"/*.buildinfo; do
    mv "$package" "$out/"
    case $package in *.deb) echo "$out/${package##*/}" ;; esac
done
