#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The image for containers: what its files say of each other, that other tools read it, and that it runs:
unpacked, as a user without rights, on a file system that cannot be written to, with a step that is compared
with float64.
    oci_long.py SOURCE BUILD [IMAGE]      IMAGE: one that is there; else deploy/package.sh oci makes it
Needs root, and what package.sh needs; code 77 where these are not there. skopeo and umoci read it where they
are installed.
"""
import gzip
import hashlib
import io
import json
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import tarfile
import time

import bare_system
from bare_system import Failed, Session, System, check

USER = 65532
MEDIA = "application/vnd.oci.image."


def skip(why):
    print(f"oci_long: skipped: {why}")
    sys.exit(77)


# ---- what the files say ----
class Image:
    """The files of the tar archive, read as a stranger would: by their digests alone."""

    def __init__(self, path):
        with tarfile.open(path) as archive:
            self.files = {m.name: archive.extractfile(m).read() for m in archive.getmembers() if m.isfile()}
        self.used = {"oci-layout", "index.json", "manifest.json"}

    def json(self, name):
        return json.loads(self.files[name])

    def blob(self, descriptor, media):
        """By a descriptor of this media type."""
        check(descriptor["mediaType"] == MEDIA + media, "media type", descriptor)
        algorithm, hex_digits = descriptor["digest"].split(":")
        name = f"blobs/{algorithm}/{hex_digits}"
        data = self.files[name]
        check(algorithm == "sha256" and hashlib.sha256(data).hexdigest() == hex_digits, name, "has another digest")
        check(len(data) == descriptor["size"], name, "has another size than", descriptor)
        self.used.add(name)
        return data


def check_files(path):
    """Returns the configuration and the layers' tar files."""
    image = Image(path)
    check(image.json("oci-layout") == {"imageLayoutVersion": "1.0.0"}, "oci-layout:", image.files["oci-layout"])
    index = image.json("index.json")
    check(index["schemaVersion"] == 2 and index["mediaType"] == MEDIA + "index.v1+json" and len(index["manifests"]) == 1, index)
    manifest = json.loads(image.blob(index["manifests"][0], "manifest.v1+json"))
    check(manifest["schemaVersion"] == 2 and manifest["mediaType"] == MEDIA + "manifest.v1+json", manifest)
    config = json.loads(image.blob(manifest["config"], "config.v1+json"))
    layers = [gzip.decompress(image.blob(layer, "layer.v1.tar+gzip")) for layer in manifest["layers"]]
    check(config["rootfs"] == {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(tar).hexdigest() for tar in layers]}, "diff_ids")
    check(len(config["history"]) == len(layers), "history")
    check(image.used == set(image.files), "nobody names", set(image.files) - image.used)
    check({key: config[key] for key in ("os", "architecture")} == index["manifests"][0]["platform"], "platform")
    docker, = image.json("manifest.json")
    names = [layer["digest"].replace("sha256:", "blobs/sha256/") for layer in [manifest["config"], *manifest["layers"]]]
    check([docker["Config"], *docker["Layers"]] == names, "Docker's manifest:", docker)
    tag = index["manifests"][0]["annotations"]["org.opencontainers.image.ref.name"]
    check(docker["RepoTags"] == [f"localhost/banyan:{tag}"] and tag.replace(".", "").replace("-", "").isalnum(), "tag:", tag)
    return config, layers


def check_config(config, version):
    run = config["config"]
    check(run["User"] == f"{USER}:{USER}" and "Entrypoint" not in run and run["StopSignal"] == "SIGTERM", run)
    prefix = "org.opencontainers.image."
    check(run["Labels"][prefix + "version"] == version and run["Labels"][prefix + "licenses"] == "Apache-2.0", run["Labels"])
    check(run["Labels"][prefix + "created"] == config["created"], "two times of its making")
    check(run["Healthcheck"]["Test"] == ["CMD", "banyanctl", "probe"], run["Healthcheck"])


def check_members(layers):
    """No file of a layer has rights, or is more than a file; one name is in one layer. Returns all names."""
    seen = {}
    for tar in layers:
        with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
            for m in archive.getmembers():
                check(m.isfile() or m.isdir(), m.name, "is neither a file nor a folder")
                check(not m.name.startswith("/") and ".." not in m.name.split("/"), m.name, "leads out")
                check(not m.mode & (stat.S_ISUID | stat.S_ISGID), m.name, "is setuid")
                owner = USER if m.name == "var/lib/banyan" else 0
                check((m.uid, m.gid, m.uname) == (owner, owner, ""), m.name, "belongs to", m.uid, m.gid, m.uname)
                check(not m.mode & 0o022 or (m.name == "tmp" and m.mode & stat.S_ISVTX), m.name, "may be written by all:", oct(m.mode))
                check(m.isdir() or m.name not in seen, m.name, "is in two layers")
                check(seen.get(m.name, m.mode) == m.mode, m.name, "has two modes")
                seen[m.name] = m.mode
    names = set(seen)
    licences = {n.rsplit("/", 1)[1] for n in names if n.startswith("usr/share/doc/banyan/licences/")}
    check({"libc6", "libnng1"} <= licences, "licences:", licences)
    check(not [n for n in names if n.endswith(("/sh", "/bash", ".a", ".h"))], "what has no place there")
    return names


def check_others_read_it(path, folder, names):
    if shutil.which("skopeo"):
        seen = json.loads(subprocess.run(["skopeo", "inspect", f"oci-archive:{path}"], check=True, capture_output=True, text=True).stdout)
        check(seen["Labels"]["org.opencontainers.image.title"] == "banyan", "skopeo sees", seen)
        # As Docker's own archive, and with a manifest of Docker's form
        for source in ("oci-archive", "docker-archive"):
            target = folder / f"{source}.docker"
            subprocess.run(["skopeo", "copy", "--quiet", f"{source}:{path}", f"docker-archive:{target}:localhost/banyan:test"], check=True)
            config = json.loads(subprocess.run(["skopeo", "inspect", "--config", "--raw", f"docker-archive:{target}"], check=True,
                                               capture_output=True, text=True).stdout)
            check(config["config"]["User"] == f"{USER}:{USER}", "Docker sees", config)
    if shutil.which("umoci"):
        layout, bundle = folder / "layout", folder / "bundle"
        layout.mkdir()
        subprocess.run(["tar", "-C", layout, "-xf", path], check=True)
        tag = json.loads((layout / "index.json").read_text())["manifests"][0]["annotations"]["org.opencontainers.image.ref.name"]
        subprocess.run(["umoci", "unpack", "--image", f"{layout}:{tag}", bundle], check=True, capture_output=True)
        runtime = json.loads((bundle / "config.json").read_text())
        check(runtime["process"]["user"]["uid"] == USER and runtime["process"]["args"] == ["banyanctl", "--help"], "umoci:", runtime["process"])
        found = {str(p.relative_to(bundle / "rootfs")) for p in (bundle / "rootfs").rglob("*")}
        check(found == names, "umoci unpacks", found ^ names)


def check_same_again(source, work, path):
    """The packer makes the same bytes of the same folders."""
    with tarfile.open(path) as archive:
        manifest = json.load(archive.extractfile("index.json"))["manifests"][0]
    config, layers = check_files(path)
    folders = []
    for i, tar in enumerate(layers):
        folders.append(work / f"again-{i}")
        with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
            archive.extractall(folders[-1])
    labels = {key.rsplit(".", 1)[1]: value for key, value in config["config"]["Labels"].items()}
    epoch = subprocess.run(["date", "-d", labels["created"], "+%s"], check=True, capture_output=True, text=True).stdout.strip()
    out = work / "again.tar"
    said = subprocess.run([sys.executable, "-B", source / "deploy/package/oci.py", f"--version={labels['version']}",
                           f"--revision={labels.get('revision', '')}", f"--epoch={epoch}", f"--machine={os.uname().machine}", f"--out={out}", *folders],
                          check=True, capture_output=True, text=True).stdout.strip()
    check(said == manifest["digest"] and out.read_bytes() == path.read_bytes(), "the same folders give another image:", said, manifest["digest"])


# ---- that it runs ----
class Container(System):
    """As a runtime runs it: its file system read-only but for volumes, its user, its environment, its
    /proc."""

    def __init__(self, root, environment):
        super().__init__(root, "/usr")
        self.environment = environment

    def run(self, *command, code=0):
        done = subprocess.run(self.words(*command), capture_output=True, text=True, stdin=subprocess.DEVNULL)
        check(done.returncode == code, " ".join(command), "ended with", done.returncode, "not", code, "\n", done.stdout, done.stderr)
        return done.stdout

    def words(self, *command):
        """There is no env(1) inside: the environment is set before the root changes."""
        return ["env", "-i", *self.environment, "/usr/sbin/chroot", f"--userspec={USER}:{USER}", str(self.root), *command]

    def ctl(self, *arguments, code=0):
        return self.run("banyanctl", *arguments, code=code)

    def start(self, name, program, *options):
        """Its log is outside; until it says that it is ready."""
        ready = self.at(f"/tmp/{name}.ready")
        ready.unlink(missing_ok=True)
        with open(f"{self.root}.{name}.log", "ab") as out:
            process = subprocess.Popen(self.words(program, f"--ready-file=/tmp/{name}.ready", *options), stdout=out, stderr=out,
                                       stdin=subprocess.DEVNULL)
        self.running[name] = process
        self.until(lambda: ready.exists() or process.poll() is not None, name)
        check(process.poll() is None, name, "has ended:", pathlib.Path(f"{self.root}.{name}.log").read_text())

    @staticmethod
    def until(truth, what):

        end = time.monotonic() + bare_system.PATIENCE_S
        while not truth():
            check(time.monotonic() < end, what, "is not so")
            time.sleep(0.05)


def mount(*arguments):
    subprocess.run(["mount", *arguments], check=True)


def prepare(root):
    """The image's root, read-only; volumes for what is written; keys as Kubernetes and Docker mount them:
    root's, for a group."""
    mount("--bind", root, root)
    mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", f"{root}/tmp")
    mount("-t", "tmpfs", "-o", f"uid={USER},gid={USER},mode=0700", "tmpfs", f"{root}/var/lib/banyan")
    mount("-t", "tmpfs", "-o", "mode=0755", "tmpfs", f"{root}/run")
    mount("-t", "proc", "proc", f"{root}/proc")
    mount("-t", "sysfs", "-o", "ro", "sysfs", f"{root}/sys")
    mount("-t", "tmpfs", "-o", "mode=0755", "tmpfs", f"{root}/dev")
    for name, minor in (("null", 3), ("urandom", 9)):
        os.mknod(f"{root}/dev/{name}", stat.S_IFCHR | 0o666, os.makedev(1, minor))
        os.chmod(f"{root}/dev/{name}", 0o666)
    for name, text in (("cluster.secret", os.urandom(32).hex() + "\n"), ("token", "a token for a test\n")):
        path = pathlib.Path(root) / "run" / name
        path.write_text(text)
        os.chown(path, 0, USER)
        path.chmod(0o440)
    mount("-o", "remount,bind,ro", root)


def test(root, environment):
    prepare(root)
    bare_system.loopback_up()
    try:
        (root / "usr/bin/new").touch()
        check(False, "the root may be written to")
    except OSError:
        pass
    c = Container(root, [*environment, "BANYAN_TOKEN_FILE=/run/token"])
    check("Inspects and operates a Banyan cluster" in c.run("banyanctl", "--help"), "help")
    c.ctl("probe", code=5)  # no coordinator is there
    keys = ("--secret-file=/run/cluster.secret",)
    c.start("coordinator", "banyan-coordinator", *keys, "--token-file=/run/token", "--http=127.0.0.1:7419")
    check(c.at("/var/lib/banyan/coordinator.db").exists(), "its store is not where the image says")
    c.ctl("probe")
    c.ctl("probe", "--ready", code=5)
    for i in (0, 1):
        c.start(f"w{i}", "banyan-worker", *keys, f"--name=w{i}", "--coordinator=tcp://127.0.0.1:7412", "--memory=256M", "--threads=1",
                f"--store=/var/lib/banyan/w{i}", f"--http=127.0.0.1:{7420 + i}")
    c.ctl("wait", "ready")
    c.ctl("probe", "--ready")
    c.ctl("probe", "--ready", "127.0.0.1:7420")
    for process in c.running.values():
        status = c.at(f"/proc/{process.pid}/status").read_text()
        check(f"Uid:\t{USER}\t{USER}\t{USER}\t{USER}\n" in status, "a daemon is another user:", status)
    session = Session(c, "kept")
    session.step()
    session.verify()
    c.stop_all()
    c.ctl("probe", code=5)
    c.start("coordinator", "banyan-coordinator", *keys, "--token-file=/run/token", "--http=127.0.0.1:7419")
    for i in (0, 1):
        c.start(f"w{i}", "banyan-worker", *keys, f"--name=w{i}", "--coordinator=tcp://127.0.0.1:7412", "--memory=256M", "--threads=1",
                f"--store=/var/lib/banyan/w{i}")
    c.ctl("wait", "whole")
    session.step()
    c.stop_all()


def inside(root, environment):
    """In namespaces of its own: nothing that it starts or mounts is left."""
    try:
        test(root, environment)
    except Failed as failed:
        print(f"oci_long: FAILED: {failed}")
        for log in sorted(root.parent.glob("*.log")):
            print(f"---- {log.name}\n{log.read_text()[-4000:]}")
        return 1
    print("oci_long: passed")
    return 0


def main():
    if sys.argv[1] == "--inside":
        return inside(pathlib.Path(sys.argv[2]), sys.argv[3:])
    source, build = (pathlib.Path(a).resolve() for a in sys.argv[1:3])
    if os.getuid() != 0:
        skip("file systems are mounted by root")
    if not shutil.which("patchelf"):
        skip("patchelf is not here (in Debian: patchelf); deploy/install-deps.sh --packages installs it")
    folder = build / "packages-test/oci"
    shutil.rmtree(folder, ignore_errors=True)
    root = folder / "root"
    root.mkdir(parents=True)
    try:
        if len(sys.argv) > 3:
            path = pathlib.Path(sys.argv[3])
        else:
            made = subprocess.run([source / "deploy/package.sh", "oci", "--cuda=off", f"--out={folder / 'out'}"], stdout=subprocess.DEVNULL)
            check(made.returncode == 0, "package.sh has failed")
            path, = (folder / "out").glob("*.oci.tar")
        config, layers = check_files(path)
        version = path.name.removeprefix("banyan-").rsplit("-linux-", 1)[0]
        check_config(config, version)
        names = check_members(layers)
        check_others_read_it(path, folder, names)
        check_same_again(source, folder, path)
        for tar in layers:
            with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
                archive.extractall(root, numeric_owner=True)
        code = subprocess.run(["unshare", "--mount", "--pid", "--fork", "--kill-child", "--net", sys.executable, "-B", __file__, "--inside",
                               root, *config["config"]["Env"]]).returncode
    except Failed as failed:
        print(f"oci_long: FAILED: {failed}")
        code = 1
    if code == 0:
        shutil.rmtree(folder)
    return code


if __name__ == "__main__":
    sys.exit(main())
