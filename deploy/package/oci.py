#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Packs folders into an image for containers, one layer each: an OCI image layout (image-spec 1.0) as a tar
file, which has Docker's manifest.json beside the index, so that 'docker load' and 'podman load' take it, too.

    oci.py --version V --revision HASH --epoch SECONDS --machine x86_64 --out FILE FOLDER...

The same input gives the same bytes: names are sorted, times are --epoch, owners are numbers.

What is in the image's configuration and why:
  no Entrypoint   the first word names a program: banyan-coordinator, banyan-worker or banyanctl. There is no shell
  User            65532: `nobody`. The file system may be read-only; /var/lib/banyan and /tmp may be written to where they
                  are volumes
  Healthcheck     of Docker, which OCI does not know and ignores: 'banyanctl probe' asks the daemon's --http
"""
import argparse
import gzip
import hashlib
import io
import json
import pathlib
import sys
import tarfile
import time

USER = 65532
OWNED = {"var/lib/banyan": 0o700}  # by that user, in all layers
MODES = {"tmp": 0o1777}
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
CONFIG = "application/vnd.oci.image.config.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def to_json(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def add(archive, name, epoch, data=None, mode=None, owner=0):
    """A file of these bytes, or a folder."""
    entry = tarfile.TarInfo(name)
    entry.mtime, entry.uid, entry.gid = epoch, owner, owner
    if data is None:
        entry.type, entry.mode = tarfile.DIRTYPE, mode or 0o755
        archive.addfile(entry)
    else:
        entry.size, entry.mode = len(data), mode or 0o644
        archive.addfile(entry, io.BytesIO(data))


def pack_layer(folder, epoch):
    """The bytes of a layer's tar file. What is neither a file nor a folder has no place in an image of
    ours."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in sorted(folder.rglob("*")):
            name = str(path.relative_to(folder))
            owner = USER if name in OWNED else 0
            if path.is_symlink() or not (path.is_dir() or path.is_file()):
                sys.exit(f"oci.py: {path} is neither a file nor a folder")
            if path.is_dir():
                add(archive, name, epoch, mode=OWNED.get(name, MODES.get(name)), owner=owner)
            else:
                add(archive, name, epoch, path.read_bytes(), 0o755 if path.stat().st_mode & 0o111 else 0o644, owner)
    return out.getvalue()


def labels(version, revision, created):
    prefix = "org.opencontainers.image."
    return {prefix + key: value for key, value in {
        "title": "banyan",
        "description": "Exact attention over a context too long for one machine: banyan-coordinator, banyan-worker, banyanctl",
        "version": version,
        "revision": revision,
        "created": created,
        "licenses": "Apache-2.0",
        "vendor": "The Banyan maintainers",
    }.items() if value}


def configure(given, created, layers):
    return {
        "created": created,
        "architecture": ARCHITECTURES[given.machine],
        "os": "linux",
        "config": {
            "User": f"{USER}:{USER}",
            "Env": ["PATH=/usr/bin", "HOME=/var/lib/banyan", "XDG_STATE_HOME=/var/lib"],  # stores: /var/lib/banyan
            "Cmd": ["banyanctl", "--help"],
            "WorkingDir": "/",
            "Volumes": {"/var/lib/banyan": {}},
            "StopSignal": "SIGTERM",
            "Labels": labels(given.version, given.revision, created),
            "Healthcheck": {"Test": ["CMD", "banyanctl", "probe"], "Interval": 10 * 10**9, "Timeout": 5 * 10**9,
                            "StartPeriod": 60 * 10**9, "Retries": 3},
        },
        "rootfs": {"type": "layers", "diff_ids": [digest(layer) for layer in layers]},
        "history": [{"created": created, "created_by": "deploy/package.sh oci", "comment": comment}
                    for comment in ("libraries", "programs")[:len(layers)]],
    }


def main():
    parser = argparse.ArgumentParser(description="Packs folders into an OCI image.")
    for name in ("version", "revision", "epoch", "machine", "out"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("folders", nargs="+", type=pathlib.Path)
    given = parser.parse_args()
    if given.machine not in ARCHITECTURES:
        sys.exit(f"oci.py: images are of {' or '.join(ARCHITECTURES)}, not of {given.machine}")
    epoch = int(given.epoch)
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch))
    tag = given.version.replace("~", "-").replace("+", "-")  # neither is in the alphabet of tags
    blobs = {}

    def blob(data, media):
        blobs[digest(data)] = data
        return {"mediaType": media, "digest": digest(data), "size": len(data)}

    layers = [pack_layer(folder, epoch) for folder in given.folders]
    packed = [blob(gzip.compress(layer, 9, mtime=0), LAYER) for layer in layers]
    config = blob(to_json(configure(given, created, layers)), CONFIG)
    manifest = blob(to_json({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": packed,
                             "annotations": labels(given.version, given.revision, created)}), MANIFEST)
    manifest["platform"] = {"architecture": ARCHITECTURES[given.machine], "os": "linux"}
    manifest["annotations"] = {"org.opencontainers.image.ref.name": tag, "io.containerd.image.name": f"localhost/banyan:{tag}"}

    def path(of):
        return "blobs/" + of["digest"].replace(":", "/")

    part = pathlib.Path(given.out + ".part")
    with tarfile.open(part, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        add(archive, "blobs", epoch)
        add(archive, "blobs/sha256", epoch)
        for name in sorted(blobs):
            add(archive, path({"digest": name}), epoch, blobs[name])
        add(archive, "index.json", epoch, to_json({"schemaVersion": 2, "mediaType": INDEX, "manifests": [manifest]}))
        add(archive, "manifest.json", epoch, to_json([{"Config": path(config), "RepoTags": [f"localhost/banyan:{tag}"],
                                                       "Layers": [path(layer) for layer in packed]}]))
        add(archive, "oci-layout", epoch, to_json({"imageLayoutVersion": "1.0.0"}))
    part.rename(given.out)
    print(manifest["digest"])


if __name__ == "__main__":
    main()
