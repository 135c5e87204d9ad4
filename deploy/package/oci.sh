# SPDX-License-Identifier: Apache-2.0
# An image for containers: part of deploy/package.sh, which sets root, out, work, version, epoch, cuda, jobs. No daemon and
# no root is needed.
#
#   build/packages/oci/tar/        what deploy/package.sh tar makes: programs, and each library but glibc's
#   build/packages/oci/layers/0/   libraries, users, empty folders: the same from one commit to the next
#   build/packages/oci/layers/1/   programs, modules, what changed
#   oci.py                         packs the layers into an OCI image layout, as a tar file
need python3 python3
need readelf binutils
need dpkg dpkg # which package glibc's files are of, and whether they are as it brought them
name=banyan-$version-linux-$(uname -m)
from=$work/tar/$name
base=$work/layers/0
top=$work/layers/1

needed() { # FILE: names of the libraries that it names itself
    readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'
}

unpack() {
    "$root/deploy/package.sh" tar --out="$work/tar" --cuda="$cuda" --jobs="$jobs" >/dev/null
    rm -rf "$work/layers" "$from"
    tar -C "$work/tar" -xf "$work/tar/$name.tar.xz"
    mkdir -p "$base"/{etc,lib,lib64,proc,run,sys,dev,tmp,usr/lib,var/lib/banyan} "$top/usr/bin" "$top/usr/share/doc"
}

take_programs() {
    install -m 0755 "$from"/bin/banyan-coordinator "$from"/bin/banyan-worker "$from"/bin/banyanctl "$top/usr/bin/"
    cp -r "$from/share/doc/banyan" "$top/usr/share/doc/"
    if [ "$cuda" = on ]; then cp -r "$from/lib/banyan" "$top/usr/lib/"; fi
}

# What the programs need of the folder's lib/, and what that needs; not libbanyan, which nobody links in there. Sets
# `glibc`: the libraries of it that any of these needs.
take_libraries() {
    local queue=("$top"/usr/bin/*) more file library
    [ "$cuda" = off ] || queue+=("$top"/usr/lib/banyan/*.so)
    glibc=()
    while [ ${#queue[@]} -gt 0 ]; do
        more=()
        for file in "${queue[@]}"; do
            for library in $(needed "$file"); do
                if [ -e "$base/usr/lib/$library" ]; then continue; fi
                if [ -e "$from/lib/$library" ]; then
                    install -m 0755 "$from/lib/$library" "$base/usr/lib/"
                    more+=("$from/lib/$library")
                else
                    glibc+=("$library")
                fi
            done
        done
        queue=("${more[@]}")
    done
}

# Glibc's own files, where its dynamic linker looks; as Debian's package has them, or none.
take_glibc() {
    local linker library folder
    linker=$(readelf -l "$top/usr/bin/banyanctl" | sed -n 's/.*program interpreter: \(.*\)\]/\1/p')
    folder=lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH)
    dpkg --verify libc6 | grep -F '/lib/' >&2 && die 1 "the above files of libc6 are not as Debian has made them"
    mkdir -p "$base/$folder" "$base$(dirname "$linker")"
    install -m 0755 "$(realpath "$linker")" "$base$linker"
    # shellcheck disable=SC2207 # names without spaces
    for library in $(printf '%s\n' "${glibc[@]}" | sort -u); do
        [ "${library#ld-linux}" = "$library" ] || continue
        [ -f "/$folder/$library" ] || die 1 "the library $library is not in /$folder"
        install -m 0755 "$(realpath "/$folder/$library")" "$base/$folder/$library"
    done
    cp /usr/share/doc/libc6/copyright "$top/usr/share/doc/banyan/licences/libc6"
    printf '%-24s %s %s\n' "(glibc)" libc6 "$(dpkg-query -W -f='${Version} (source: ${source:Package} ${source:Version})\n' libc6 | sed -n 1p)" \
        >>"$top/usr/share/doc/banyan/LIBRARIES"
}

write_etc() {
    printf '%s\n' 'root:x:0:0:root:/:/sbin/nologin' 'banyan:x:65532:65532:Banyan:/var/lib/banyan:/sbin/nologin' >"$base/etc/passwd"
    printf '%s\n' 'root:x:0:' 'banyan:x:65532:' >"$base/etc/group"
    printf '%s\n' 'passwd: files' 'group: files' 'hosts: files dns' >"$base/etc/nsswitch.conf"
}

need dpkg-architecture dpkg-dev
unpack
take_programs
take_libraries
take_glibc
write_etc
revision=$(git -C "$root" rev-parse HEAD 2>/dev/null || true)
python3 -B "$root/deploy/package/oci.py" --version="$version" --revision="$revision" --epoch="$epoch" --machine="$(uname -m)" \
    --out="$out/$name.oci.tar" "$base" "$top" >"$work/log" || die 1 "the image could not be packed"
echo "$out/$name.oci.tar"
