# SPDX-License-Identifier: Apache-2.0
# A folder that runs wherever it is unpacked: part of deploy/package.sh, which sets root, out, work, version, epoch, jobs,
# tests. With --tests more is inside (tar_tests.sh).
#
#   bin/ share/ include/    as cmake --install writes them
#   lib/                    libbanyan, and each library that the programs need and glibc does not have
#   lib/banyan/             the modules for CUDA and NCCL; that for MPI is not here: it is of one Open MPI with its mpirun
#   share/doc/banyan/       licences of all that is inside
glibc=2.36 # what it may need at most
need patchelf patchelf
need readelf binutils
need dpkg dpkg # whose library it is, and under which licence
name=banyan-$version-linux-$(uname -m)
[ "$tests" = off ] || name=banyan-tests-$version-linux-$(uname -m)
tree=$work/$name
more_targets=() # beside the programs and libbanyan

# What every Linux with glibc has. All else comes along.
of_glibc='^(ld-linux.*|lib(c|m|pthread|dl|rt|resolv|util|anl|mvec))\.so\.[0-9]+$'

build() {
    local map="-ffile-prefix-map=$root=. -ffile-prefix-map=$work/obj=obj"
    local targets=(banyan banyan-coordinator banyan-worker banyanctl man)
    [ "$cuda" = off ] || targets+=(banyan_cuda banyan_nccl)
    targets+=("${more_targets[@]}")
    cmake -S "$root" -B "$work/obj" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_C_FLAGS="$map" -DCMAKE_CXX_FLAGS="$map" -DCMAKE_INSTALL_LIBDIR=lib \
        -DCMAKE_SKIP_INSTALL_ALL_DEPENDENCY=ON -DBANYAN_MPI=OFF -DBANYAN_CUDA="${cuda^^}" -DBANYAN_NCCL="${cuda^^}" &&
        cmake --build "$work/obj" --parallel "$jobs" --target "${targets[@]}"
}

# The static library stays behind: whoever links it needs the development files of what is inside.
install_files() {
    ninja -C "$work/obj" banyan_archive && rm -rf "$tree" && cmake --install "$work/obj" --prefix "$tree" --strip &&
        rm "$tree/lib/libbanyan.a" && sed -i -E '/^(Requires|Libs)\.private:/d' "$tree/lib/pkgconfig/banyan.pc" &&
        mkdir -p "$tree/share/doc/banyan/licences" && cp "$root/LICENSE" "$root/CHANGELOG.md" "$tree/share/doc/banyan/" &&
        cp "$root/deploy/package/tar.README" "$tree/README" && mv "$tree/lib/systemd" "$tree/share/systemd" &&
        { [ "$cuda" = off ] || strip --strip-unneeded "$tree"/lib/banyan/*.so; } # which cmake takes for programs
}

# Sets `files`: all programs and libraries inside, without scripts.
list_binaries() {
    local file
    files=()
    while IFS= read -r file; do
        if cmp -s -n 4 "$file" <(printf '\x7fELF'); then files+=("$file"); fi
    done < <(find "$tree"/{bin,lib,bench} -type f \( -perm -u+x -o -name '*.so*' \) 2>/dev/null)
}

needed() { # FILE: names of the libraries that it names itself
    readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'
}

# Copies each library that is needed and its licence, and what that one needs, until nothing is missing.
bring_libraries() {
    local files file library path more
    list_binaries
    local queue=("${files[@]}")
    while [ ${#queue[@]} -gt 0 ]; do
        more=()
        for file in "${queue[@]}"; do
            for library in $(needed "$file"); do
                if [[ $library =~ $of_glibc ]] || [ -e "$tree/lib/$library" ]; then continue; fi
                path=$(ldd "$file" | awk -v l="$library" '$1 == l { print $3 }')
                [ -f "$path" ] || die 1 "the library $library, which $file needs, was not found"
                install -m 0755 "$path" "$tree/lib/$library"
                bring_licence "$library" "$path"
                # Asked by its own path, as the copy finds nothing yet
                more+=("$path")
            done
        done
        queue=("${more[@]}")
    done
}

bring_licence() { # LIBRARY PATH
    local package
    package=$(dpkg -S "$(realpath "$2")" 2>/dev/null || dpkg -S "$(realpath "$2" | sed 's,^/usr,,')" 2>/dev/null) ||
        die 1 "$2 is of no Debian package: under which licence it may be passed on is unknown"
    package=${package%%:*}
    cp "/usr/share/doc/$package/copyright" "$tree/share/doc/banyan/licences/$package"
    printf '%-24s %s %s\n' "$1" "$package" "$(dpkg-query -W -f='${Version} (source: ${source:Package} ${source:Version})\n' "$package" | sed -n 1p)" \
        >>"$tree/share/doc/banyan/LIBRARIES"
}

# Of a library that is NVIDIA's: the first of these files that is there.
bring_nvidia_licence() { # NAME FILE...
    local file
    for file in "${@:2}"; do
        if [ -f "$file" ]; then
            cp "$file" "$tree/share/doc/banyan/licences/$1"
            return
        fi
    done
    echo "package.sh: the licence of $1 was not found: $name.tar.xz has none; do not pass it on without" >&2
}

# Debian's files name the usual licences by a path that other systems do not have.
bring_common_licences() {
    local name
    mkdir -p "$tree/share/doc/banyan/licences/common"
    for name in $(grep -ohE '/usr/share/common-licenses/[A-Za-z0-9-]+(\.[0-9]+)?' "$tree"/share/doc/banyan/licences/* 2>/dev/null | sort -u); do
        if [ -f "$name" ]; then cp -L "$name" "$tree/share/doc/banyan/licences/common/"; fi
    done
}

set_paths() {
    local files file
    list_binaries
    for file in "${files[@]}"; do
        # shellcheck disable=SC2016 # $ORIGIN is for the dynamic linker
        case $file in
        "$tree/bin/"* | "$tree/bench/"*) patchelf --set-rpath '$ORIGIN/../lib' "$file" ;;
        "$tree/lib/banyan/"*) patchelf --set-rpath '$ORIGIN/..' "$file" ;;
        *) patchelf --set-rpath '$ORIGIN' "$file" ;;
        esac
    done
}

# Nothing outside glibc is needed, no newer glibc than promised, and no path of this machine is inside.
check() {
    local files file library newest
    list_binaries
    for file in "${files[@]}"; do
        for library in $(needed "$file"); do
            [[ $library =~ $of_glibc ]] || [ -e "$tree/lib/$library" ] || die 1 "${file#"$tree"/} needs $library, which is not inside"
        done
        newest=$(objdump -T "$file" | grep -oE 'GLIBC_2\.[0-9.]+' | sort -Vu | tail -n 1)
        [ "$(printf '%s\n' "GLIBC_$glibc" "$newest" | sort -V | tail -n 1)" = "GLIBC_$glibc" ] ||
            die 1 "${file#"$tree"/} needs $newest, more than $glibc: make the package on Debian 12"
        ! ldd "$file" | grep -F 'not found' >&2 || die 1 "${file#"$tree"/}: the dynamic linker does not find the above"
    done
    if grep -rlF "$root" "$tree" >&2; then die 1 "these files name the folder in which they were made"; fi
}

install_more() { :; }
bring_more() { :; }
if [ "$tests" = on ]; then
    # shellcheck source=/dev/null
    . "$root/deploy/package/tar_tests.sh"
fi
if ! { build && install_files && install_more; } >"$work/log" 2>&1; then
    tail -n 40 "$work/log" >&2
    die 1 "the build failed; the end of its output is above, all of it is in $work/log"
fi
echo "What lib/ holds of Debian's packages; their licences are in licences/, and Debian has their sources." >"$tree/share/doc/banyan/LIBRARIES"
bring_libraries
{
    echo "xxHash's code is in the programs and libbanyan; Debian has it in libxxhash-dev."
    cp /usr/share/doc/libxxhash-dev/copyright "$tree/share/doc/banyan/licences/libxxhash-dev"
} >>"$tree/share/doc/banyan/LIBRARIES"
if [ "$cuda" = on ]; then
    echo "The modules for CUDA hold NVIDIA's CUDA runtime library, under the licence of the CUDA toolkit." >>"$tree/share/doc/banyan/LIBRARIES"
    toolkit=$(readlink -f "$(sed -n 's/^BANYAN_NVCC:[A-Z]*=//p' "$work/obj/CMakeCache.txt")")
    toolkit=${toolkit%/*/*}
    bring_nvidia_licence cuda-runtime "$toolkit"/EULA.txt "$toolkit"/dist-info/nvidia_cuda_runtime-*/licenses/*.txt \
        "${toolkit%/*/*}"/nvidia_cuda_runtime-*.dist-info/licenses/*.txt /usr/share/doc/nvidia-cuda-toolkit/copyright
fi
bring_more
bring_common_licences
set_paths
check
tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$epoch" --create "$name" |
    xz -T"$jobs" -6 >"$out/$name.tar.xz.part"
[ "$tests" = off ] || check_size "$out/$name.tar.xz.part"
mv "$out/$name.tar.xz.part" "$out/$name.tar.xz"
echo "$out/$name.tar.xz"
