#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/gpu.sh: over an emulated device, and over programs that stand in for all that a machine with a GPU
    has. gpu_test.py SOURCE emulated BUILD | stand_ins
"""
import json
import math
import os
import pathlib
import pty
import resource
import signal
import subprocess
import sys
import tempfile
import time
import unittest

SOURCE, WHAT = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
SCRIPT = SOURCE / "tests/gpu.sh"
NAMES = ["machine", "numbers", "bandwidth", "occupancy", "shapes", "peers", "cluster", "sanitizer", "ptx", "nccl"]

# A step of the stand-in takes 10 us and 1 us for every 3,000 bytes; alone it is 5 us later.
DEVICE = """
[ "$1" = --help ] && { echo "--v-in-k"; exit; }
odd probe
while [ $# -gt 0 ]; do
    case $1 in --context) contexts=$2 ;; --kv) kv=$2 ;; --group) groups=$2 ;; --rows) rows=$2 ;; --batch) batch=$2 ;; --dim) dim=$2 ;; esac
    shift
done
odd $kv
for c in ${contexts//,/ }; do for g in ${groups//,/ }; do
    keys=$((${c/K/ * 1024})); bytes=$((keys * 4096))
    awk -v keys=$keys -v bytes=$bytes -v kv=$kv -v g=$g -v rows=$rows -v batch=${batch:-1} -v dim=${dim:-128} 'BEGIN {
        step = 10 + bytes / 3000
        printf "{\\"bench\\": \\"device\\", \\"kernel\\": \\"cuda-3-sm_90\\", \\"device\\": \\"cuda:0 (NVIDIA \\\\\\"X\\\\\\" 9|000)\\", \\"emulated\\": false, "
        printf "\\"kv\\": \\"%s\\", \\"context\\": %d, \\"group\\": %d, \\"rows\\": %d, \\"batch\\": %d, \\"kv_heads\\": 8, \\"dim\\": %d, ", kv, keys, g, rows, batch, dim
        printf "\\"bytes\\": %d, \\"bytes_per_s\\": %.9g, \\"ratio\\": 0.9, \\"ratio_read\\": nan, ", bytes, bytes / step * 1e6
        printf "\\"us_submit_to_done\\": %.9g, \\"us_per_step\\": %.9g, \\"of_bound\\": 0.25, \\"done_samples\\": [1, inf]}\\n", step + 5, step }'
done; done
"""
SUITE = """
odd "$2"; [ -z "$CUDA_FORCE_PTX_JIT" ] || odd ptx
echo "f32   o within 0.318, lse within 0.110 of the bound (near ties, f32)"
echo "bf16  o within 0.${BOUND-365}, lse within 0.136 of the bound (soft cap 50, bf16)"
echo "fp8   o within 0.000, lse within 0.000 of the bound ()"
"""
# odd NAME: where FAKE has NAME=hang, NAME=fail, NAME=rubbish or NAME=none, that is what happens
ODD = """#!/usr/bin/env bash
odd() {
    case " $FAKE " in
    *" $1=hang "*) trap '' TERM; sleep 1000 & echo $! >>"$PIDS"; echo $$ >>"$PIDS"; wait; while :; do sleep 1000; done ;;
    *" $1=fail "*) echo "it is wrong: $1" >&2; exit 1 ;;
    *" $1=rubbish "*) printf 'a "quote", a \\\\\\\\, a tab\\t\\001\\377, 100%% | of it\\n' >&2; exit 9 ;;
    *" $1=none "*) echo "device: cuda:0: ${SAID:-no CUDA device: CUDA driver version is insufficient for CUDA runtime version}" >&2; exit 1 ;;
    *" $1=denied "*) echo "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters"; exit 1 ;;
    *" $1=killed "*) kill -KILL $$ ;;
    *" $1=full "*) "$PYTHON_HERE" -c "$FILL" ;;
    esac
}
"""
# From now on nothing that gpu.sh writes finds room, nor what it starts
FILL = """
import os, pathlib, resource
def parent(pid): return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
pid = os.getpid()
while b"gpu.sh" not in pathlib.Path(f"/proc/{parent(pid)}/cmdline").read_bytes(): pid = parent(pid)
while b"gpu.sh" in pathlib.Path(f"/proc/{parent(pid)}/cmdline").read_bytes(): pid = parent(pid)
resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
"""
PROGRAMS = {
    "bin/cuda_device_test": SUITE,
    "bin/nccl_conformance": 'odd conformance; for r in 7 2 4 2; do echo "x: communicator ready plan=1 rank=0 ranks=$r trial_4224=gather:1.0us" >&2; done',
    "bin/nccl_e2e": "odd e2e",
    "bin/banyan-coordinator": 'odd coordinator; while [ "$1" != --ready-file ]; do shift; done; echo \'{"endpoints": ["nng+tcp://127.0.0.1:9"]}\' >"$2"; exec sleep 1000',
    "bin/banyan-worker": 'odd worker; while [ "$1" != --ready-file ]; do shift; done; echo ready >"$2"; exec sleep 1000',
    "bin/generate": 'odd generate; while [ $# -gt 0 ]; do [ "$1" != --json ] || echo \'{"a": 1}\' >"$2"; shift; done',
    "bench/device": DEVICE,
    "bench/step_latency": 'while [ $# -gt 0 ]; do [ "$1" != --only ] || w=$2; shift; done; odd $w\n'
                          'echo "{\\"bench\\": \\"step_latency\\", \\"what\\": \\"$w\\", \\"workers\\": 4, \\"p50_us\\": 99, \\"p99_us\\": 200, \\"ratio_to_floor\\": 2}"',
    "bench/sessions": 'odd sessions; echo \'{"bench": "sessions", "mode": "batched", "geometry": "8/2x64", "workers": 1, "sessions": 8, "steps_per_s": 7000, "ratio": 3}\'',
    "bench/device_peers.py": "",
    "lib/banyan-cuda.so": "", "lib/banyan-cuda-emulated.so": "", "lib/banyan-nccl.so": "",
    "tools/nvidia-smi": "odd smi; echo \"$*\" >\"${ASKED:-/dev/null}\"; echo \"580.1, NVIDIA X, GPU-1, 9.0, 81559, ${MIG-Disabled}, Enabled, Enabled, 700.00, 1980, 2619, 1980, 2619, 5, 16, 30, ${TAKEN-4}, 0, ${MODE-Default}\"",
    "tools/ncu": 'odd ncu; echo "==PROF== x"; echo \'"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\'\n'
                 'echo \'"0","tile_kernel<3, 128>(cuda_launch)","sm__warps_active.avg.pct_of_peak_sustained_active","%","12.5"\'\n'
                 'echo \'"0","tile_kernel<3, 128>(cuda_launch)","dram__throughput.avg.pct_of_peak_sustained_elapsed","%","90.1"\'\n'
                 'echo \'"0","tile_kernel<3, 128>(cuda_launch)","gpu__time_duration.sum","ns","112,000"\'',
    "tools/compute-sanitizer": 'odd "$2"; shift 4; exec "$@"',
    "tools/python3": 'odd torch; [ "$1" = -c ] && { echo 2.9; exit; }; odd peers\n'
                     'for k in 4096 16384; do echo "{\\"bench\\": \\"device\\", \\"peer\\": \\"flash\\", \\"kv\\": \\"bf16\\", \\"context\\": $k, \\"group\\": 4, \\"us_per_step\\": $((20 + k * 4096 / 1500))}"; done',
}


def dead(pid):
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.out = self.root / "out"

    def read(self):
        path, = self.out.glob("gpu-*.json")
        result = json.loads(path.read_text(encoding="ascii"))
        self.assertEqual(result["format"], 1)
        self.assertEqual([p["name"] for p in result["parts"]], NAMES)
        self.assertEqual([p["part"] for p in result["parts"]], list(range(1, 11)))
        for part in result["parts"]:
            self.assertIn(part["result"], ("passed", "failed", "not run"))
            self.assertTrue(part["result"] == "passed" or part["why"], part)
        self.markdown = path.with_suffix(".md").read_text()
        for number, name in enumerate(NAMES, 1):
            self.assertIn(f"| {number} {name} | {result['parts'][number - 1]['result']} |", self.markdown)
        self.assertEqual(sorted(p.name for p in self.out.iterdir()), sorted([path.name, path.with_suffix(".md").name]))
        return result, {p["name"]: p for p in result["parts"]}


class StandIns(Case):
    def setUp(self):
        super().setUp()
        for name, text in PROGRAMS.items():
            path = self.root / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(ODD + text + "\n")
            path.chmod(0o755)
        self.pids = self.root / "pids"
        self.pids.touch()

    def environment(self, fake, hurry, more):
        environment = {**os.environ, "PATH": f"{self.root / 'tools'}:{os.environ['PATH']}", "FAKE": fake, "PIDS": str(self.pids),
                       "TMPDIR": str(self.root / "tmp"), "BANYAN_GPU_HURRY": str(hurry), "PYTHON_HERE": sys.executable, "FILL": FILL}
        for name in ("PYTHON", "CUDA_HOME", "BANYAN_NCCL_LIBRARY", "BANYAN_BUILD_DIR", "CUDA_VISIBLE_DEVICES"):
            environment.pop(name, None)
        environment.update(more)
        (self.root / "tmp").mkdir(exist_ok=True)
        return environment

    def command(self, *words):
        return ["bash", SCRIPT, f"--from={self.root}", f"--out={self.out}", *words]

    def run_it(self, *words, fake="", hurry=1, most_bytes=None, **more):
        def limit(): # a disk with so much room; writing beyond it fails, and no signal comes
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, resource.RLIM_INFINITY))

        done = subprocess.run(self.command(*words), capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
                              env=self.environment(fake, hurry, more), preexec_fn=limit if most_bytes is not None else None)
        self.assertEqual(list((self.root / "tmp").iterdir()), [], "it left something behind")
        return done

    def nothing_runs(self):
        end = time.monotonic() + 30
        for pid in self.pids.read_text().split():
            while not dead(pid):
                self.assertLess(time.monotonic(), end, pid)
                time.sleep(0.05)

    def test_a_gpu(self):
        done = self.run_it()
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        result, parts = self.read()
        self.assertTrue(result["complete"] and not result["emulated"])
        self.assertEqual({p["result"] for p in result["parts"]}, {"passed"}, done.stdout)
        figures = {name: part["figures"] for name, part in parts.items()}
        self.assertEqual((figures["machine"]["driver_version"], figures["machine"]["mig.mode.current"], figures["machine"]["clocks.max.sm"]),
                         (580.1, "Disabled", 1980))
        self.assertEqual((figures["numbers"]["bf16"], figures["numbers"]["f32_lse"]), (0.365, 0.11))
        self.assertNotIn("fp8", figures["numbers"])  # not tested by what stands in
        self.assertIn("| bf16 | 0.365, 0.136 | 0.365, 0.136 | 0.365, 0.136 |", self.markdown)
        for name, value in (("slope_gb_per_s", 3), ("fixed_us", 10), ("waiter_us", 5)):
            self.assertTrue(math.isclose(figures["bandwidth"][name], value, rel_tol=0.01), figures["bandwidth"])
        self.assertEqual([line["context"] for line in parts["bandwidth"]["lines"]], [4096 << i for i in range(8)])
        self.assertEqual((parts["bandwidth"]["lines"][0]["ratio_read"], parts["bandwidth"]["lines"][0]["done_samples"]), (None, [1, None]))
        self.assertIn("12.5", parts["occupancy"]["words"])
        self.assertIn("| tile_kernel | gpu__time_duration.sum | ns | 112000 |", self.markdown)
        self.assertEqual([(x["kv"], x["group"], x["rows"], x["batch"], x["dim"]) for x in parts["shapes"]["lines"]],
                         [("int8", 4, 1, 1, 128), ("fp8", 4, 1, 1, 128), ("f32", 4, 1, 1, 128), ("bf16", 16, 1, 1, 128),
                          ("bf16", 4, 64, 1, 128), ("bf16", 4, 64, 1, 128),  # without and with products of a warpgroup
                          ("bf16", 4, 1, 64, 128), ("bf16", 4, 1, 1, 256), ("bf16,f16", 16, 1, 1, 576), ("bf16,f16", 128, 1, 1, 576)])
        self.assertIn("4096 keys: 2.00 x", parts["peers"]["words"])
        self.assertIn("| step_32k, 4 workers | p50 99 µs", self.markdown)
        self.assertEqual(len(parts["sanitizer"]["passed"]), 8)
        self.assertIn("bf16 0.365", parts["ptx"]["words"])
        self.assertEqual(figures["nccl"]["ranks"], "2, 4, 7")
        self.assertIn("Nothing has failed; 10 of 10 parts have run.", done.stdout)
        for text in ("what this machine is", "several ranks on this card"):
            self.assertIn(text, done.stdout)

    def test_failures_end_their_part_alone(self):
        done = self.run_it(fake="numbers=fail step_min=rubbish racecheck=fail e2e=fail")
        self.assertEqual(done.returncode, 1)
        _, parts = self.read()
        failed = {name for name, part in parts.items() if part["result"] == "failed"}
        self.assertEqual(failed, {"numbers", "cluster", "sanitizer", "ptx", "nccl"})
        self.assertIn("it is wrong: numbers", parts["numbers"]["why"])
        self.assertIn('a "quote", a \\\\, a tab , 100% | of it', parts["cluster"]["why"])
        self.assertIn("it is wrong", parts["nccl"]["output"])
        self.assertEqual(parts["nccl"]["passed"], ["conformance"])
        self.assertIn("At least one part has FAILED", done.stdout)

    def test_bits_that_do_not_repeat(self):
        suite = self.root / "bin/cuda_device_test"
        suite.write_text(suite.read_text().replace("${BOUND-365}", "$(date +%N | cut -c1-6)"))
        self.assertEqual(self.run_it("--part=2").returncode, 1)
        self.assertIn("bits do not repeat", self.read()[1]["numbers"]["why"])

    def test_an_older_card_has_no_ptx(self):
        smi = self.root / "tools/nvidia-smi"
        smi.write_text(smi.read_text().replace(" 9.0,", " 8.0,"))
        self.assertEqual(self.run_it("--part=9").returncode, 0)
        said = ("not run", "the module's PTX is for 9.0 and later, this card is 8.0")
        ptx = self.read()[1]["ptx"]
        self.assertEqual((ptx["result"], ptx["why"]), said)
        smi.unlink()  # the kernels' name shows it, too
        device = self.root / "bench/device"
        device.write_text(device.read_text().replace("sm_90", "sm_80"))
        for path in self.out.iterdir():
            path.unlink()
        self.assertEqual(self.run_it("--part=9").returncode, 0)
        ptx = self.read()[1]["ptx"]
        self.assertEqual((ptx["result"], ptx["why"]), said)

    def test_what_is_not_there_is_said(self):
        for name in ("nvidia-smi", "ncu", "compute-sanitizer", "python3"):
            (self.root / "tools" / name).unlink()
        (self.root / "lib/banyan-nccl.so").unlink()
        done = self.run_it(PYTHON="/nonexistent/python", CUDA_HOME="/nonexistent")
        _, parts = self.read()
        for name, said in (("peers", "PyTorch"), ("nccl", "nccl.h")):
            self.assertEqual(parts[name]["result"], "not run", done.stdout)
            self.assertIn(said, parts[name]["why"])
        self.assertIn("nvidia-smi is not here", parts["machine"]["why"])
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_hangs(self):
        done = self.run_it("--part=2", "--part=10", fake="life=hang conformance=hang", hurry=4)
        self.assertEqual(done.returncode, 1)
        _, parts = self.read()
        for name, hung, rest in (("numbers", "life did not end within 25 s", ["numbers", "numbers_again", "latents"]),
                                 ("nccl", "conformance did not end within 60 s", ["e2e"])):
            self.assertEqual((parts[name]["result"], parts[name]["why"], parts[name]["passed"]), ("failed", hung, rest))
        self.nothing_runs()

    def test_a_sanitizer_without_end_says_nothing(self):
        done = self.run_it("--part=8", fake="memcheck=hang synccheck=fail", hurry=4)
        self.assertEqual(done.returncode, 1)
        why = self.read()[1]["sanitizer"]["why"]
        self.assertIn("it is wrong: synccheck; ", why)
        self.assertIn("memcheck_life did not end within 30 s", why)
        self.nothing_runs()

    def test_never_longer_than_asked_for(self):
        hang = " ".join(f"{name}=hang" for name in ("life", "numbers", "ncu", "peers", "generate", "step_min", "sessions", "memcheck", "e2e"))
        done = self.run_it("--minutes=3", fake=hang, hurry=4)
        self.assertEqual(done.returncode, 1)
        result, parts = self.read()
        self.assertTrue(result["complete"])
        self.assertEqual(parts["sanitizer"]["result"], "not run")
        self.assertIn("no time was left: 3 minutes are used up", parts["sanitizer"]["why"])
        # The last part has its share, whatever hangs before
        self.assertEqual((parts["nccl"]["result"], parts["nccl"]["passed"]), ("failed", ["conformance"]))
        self.nothing_runs()

    def begin(self, fake):
        process = subprocess.Popen(self.command(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
                                   env=self.environment(fake, 1, {}))
        end = time.monotonic() + 60
        while not self.pids.read_text():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)
        return process

    def test_interrupted(self):
        process = self.begin("generate=hang")
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=60)[1]
        self.assertEqual(process.returncode, 143)
        self.assertIn("interrupted", said)
        result, parts = self.read()
        self.assertFalse(result["complete"])
        self.assertEqual((parts["shapes"]["result"], parts["cluster"]["result"], parts["nccl"]["result"]), ("passed", "failed", "not run"))
        self.nothing_runs()
        self.assertEqual(list((self.root / "tmp").glob("banyan-gpu.*")), [])

    def test_control_c(self):
        """At a terminal, while tee reads the output: both get the signal, and tee is gone first."""
        environment, pid_file = self.environment("generate=hang", 1, {}), self.root / "tee"
        line = f"exec bash {SCRIPT} --from={self.root} --out={self.out} 2>{self.root / 'said'} | (echo $BASHPID >{pid_file}; exec tee {self.root / 'log'})"
        pid, terminal = pty.fork()
        if pid == 0:
            for number in (signal.SIGINT, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            os.execvpe("bash", ["bash", "-c", line + "; exit ${PIPESTATUS[0]}"], environment)
        self.addCleanup(os.close, terminal)
        end = time.monotonic() + 120
        while not self.pids.read_text():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)
        os.write(terminal, b"\x03")
        while os.waitpid(pid, os.WNOHANG)[0] == 0:
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)
        while list((self.root / "tmp").glob("banyan-gpu.*")):
            self.assertLess(time.monotonic(), end, "it left its folder behind")
            time.sleep(0.05)
        result, parts = self.read()
        self.assertFalse(result["complete"])
        self.assertEqual((parts["shapes"]["result"], parts["cluster"]["result"], parts["nccl"]["result"]), ("passed", "failed", "not run"))
        self.assertIn("interrupted", parts["cluster"]["why"])
        self.assertIn("interrupted; the results so far are in", (self.root / "said").read_text())
        self.nothing_runs()

    def test_nobody_reads_the_output(self):
        reader, writer = os.pipe()
        os.close(reader)
        with open(self.root / "said", "wb") as said:
            done = subprocess.run(self.command("--part=3"), stdout=writer, stderr=said, stdin=subprocess.DEVNULL, check=False,
                                  env=self.environment("", 1, {}))
        os.close(writer)
        self.assertEqual((done.returncode, self.read()[1]["bandwidth"]["result"]), (0, "passed"), (self.root / "said").read_text())
        self.assertTrue(self.read()[0]["complete"])

    def test_no_room(self):
        done = self.run_it(most_bytes=1 << 20)
        self.assertEqual((done.returncode, done.stdout), (3, ""))
        self.assertRegex(done.stderr, r"^gpu\.sh: the disk of /[^ ]* is full: 4 MiB are needed .*\n$")
        self.assertEqual(list(self.out.iterdir()), [])

    def test_the_disk_fills_up(self):
        done = self.run_it("--part=3", "--part=5", "--part=9", fake="int8=full", most_bytes=64 << 20)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"gpu\.sh: .*\.md could not be written: is the disk full\? The results so far are above\n$")
        result, parts = self.read()  # as they were before
        self.assertFalse(result["complete"])
        self.assertEqual((parts["bandwidth"]["result"], parts["shapes"]["result"]), ("passed", "not run"))
        table, _, markdown = done.stdout.partition("What the Markdown file would have held:")
        self.assertRegex(table, r"int8: what it said is lost: the disk of /[^ ]* is full")
        self.assertRegex(table, r"ptx +.* not run +the disk of /[^ ]* is full")
        self.assertIn("| 3 bandwidth | passed |", markdown)
        self.assertIn("| bf16 | 524288 | 4 | 1 |", markdown)

    def test_the_machine_goes_away(self):
        process = self.begin("ncu=hang")
        process.kill()
        process.communicate(timeout=60)
        for pid in self.pids.read_text().split():
            os.kill(int(pid), signal.SIGKILL)
        result, parts = self.read()
        self.assertFalse(result["complete"])
        self.assertEqual((parts["bandwidth"]["result"], parts["occupancy"]["result"]), ("passed", "not run"))
        self.assertIn("ended before", parts["occupancy"]["why"])

    def test_some_parts(self):
        done = self.run_it("--part", "9", "--part=4")
        self.assertEqual(done.returncode, 0, done.stderr)
        _, parts = self.read()
        self.assertEqual([n for n in NAMES if parts[n]["result"] == "passed"], ["machine", "occupancy", "ptx"])
        self.assertEqual(parts["nccl"]["why"], "not asked for")

    def test_no_device(self):
        here = self.root / "version"
        here.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.1\n")
        old = "no CUDA device: the driver supports CUDA 12.4, the module needs CUDA 13.0: install a newer driver, or a module built with CUDA 12.x"
        none = "no CUDA device: no CUDA-capable device is detected"
        small = "NVIDIA L4 (compute capability 8.9) has 101376 bytes of shared memory for a block; 158720 are needed"
        for said, driver, more, wanted in (
                (None, "/nonexistent", {}, "there is no NVIDIA driver on this machine: install it and load it (nvidia-smi shows the cards), or try --emulated"),
                (None, here, {}, "the NVIDIA driver is loaded, but its library libcuda.so.1 is not found: start the container with its GPUs (--gpus all), or "
                                 "install the driver's libraries"),
                (old, "/nonexistent", {}, "no GPU can be used here: " + old.partition(": ")[2]),
                (small, here, {}, "no GPU can be used here: " + small),
                (none, here, {"CUDA_VISIBLE_DEVICES": "7"}, "no GPU can be used here: no CUDA-capable device is detected; CUDA_VISIBLE_DEVICES is '7'"),
                (none, here, {"MIG": "Enabled"}, "no GPU can be used here: no CUDA-capable device is detected; MIG is on: there must be an instance "
                                                 "(nvidia-smi -L), and CUDA_VISIBLE_DEVICES must not hide it")):
            done = self.run_it(fake="probe=none", BANYAN_GPU_DRIVER=str(driver), **more, **({"SAID": said} if said else {}))
            self.assertEqual((done.returncode, done.stderr), (3, f"gpu.sh: {wanted}\n"))
            self.assertEqual(list(self.out.iterdir()), [])

    def test_a_slice_of_a_card_that_others_use(self):
        done = self.run_it("--part=1", MIG="Enabled", TAKEN="40000", CUDA_VISIBLE_DEVICES="3,1", ASKED=str(self.root / "asked"))
        self.assertEqual(done.returncode, 0, done.stderr)
        words = self.read()[1]["machine"]["words"]
        self.assertIn("MIG is on: every figure is of a slice of the card", words)
        self.assertIn("others use this card: 40000 MiB are taken", words)
        self.assertTrue((self.root / "asked").read_text().startswith("-i 3 --query-gpu="))

    def test_a_card_for_one_process(self):
        done = self.run_it("--part=7", MODE="Exclusive_Process")
        self.assertEqual(done.returncode, 0, done.stderr)
        cluster = self.read()[1]["cluster"]
        self.assertEqual(cluster["result"], "not run")
        self.assertIn("one process at a time (compute mode Exclusive_Process;", cluster["why"])

    def test_nvidia_smi_without_an_answer(self):
        for fake, said in (("smi=hang", "nvidia-smi did not end within 10 s"), ("smi=fail", "nvidia-smi ended with 1: it is wrong: smi")):
            done = self.run_it("--part=1", fake=fake, hurry=4)
            self.assertEqual(done.returncode, 0, done.stderr)
            machine = self.read()[1]["machine"]
            self.assertEqual((machine["result"], machine["why"]), ("passed", said))
            for path in self.out.iterdir():
                path.unlink()
        self.nothing_runs()

    def test_a_profiler_that_may_not_count(self):
        done = self.run_it("--part=4", fake="ncu=denied")
        self.assertEqual(done.returncode, 0, done.stderr)
        occupancy = self.read()[1]["occupancy"]
        self.assertEqual(occupancy["result"], "not run")
        self.assertIn("ncu may not read the counters: run as root", occupancy["why"])

    def test_a_program_that_is_killed(self):
        done = self.run_it("--part=2", fake="life=killed")
        self.assertEqual((done.returncode, done.stderr), (1, ""))
        numbers = self.read()[1]["numbers"]
        self.assertIn("life ended with 137", numbers["why"])
        self.assertEqual(numbers["passed"], ["numbers", "numbers_again", "latents"])

    def test_a_device_that_does_not_open(self):
        done = self.run_it("--part=1", fake="probe=fail")
        self.assertEqual(done.returncode, 1)
        self.assertIn("it is wrong: probe", self.read()[1]["machine"]["why"])

    def test_wrong_words(self):
        for words, code, said in ((["--minutes=0"], 2, "1 to 120"), (["--minutes=121"], 2, "'121'"), (["--minutes"], 2, "needs a value"),
                                  (["--part=11"], 2, "1 to 10"), (["--part=x"], 2, "'x'"), (["--fast"], 2, "unknown option '--fast'"),
                                  (["--from=/nonexistent"], 2, "no folder"), ([f"--from={self.root / 'tools'}"], 3, "deploy/package.sh tar --tests"),
                                  (["--out=/proc/x"], 2, "/proc/x")):
            done = self.run_it(*words)
            self.assertEqual((done.returncode, done.stdout), (code, ""), words)
            self.assertTrue(done.stderr.startswith("gpu.sh: ") and said in done.stderr and done.stderr.count("\n") == 1, done.stderr)
        done = self.run_it("--help")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertLessEqual(max(map(len, done.stdout.splitlines())), 120)

    def test_a_build_without_nvcc(self):
        (self.root / "lib/banyan-cuda.so").unlink()
        done = self.run_it()
        self.assertEqual((done.returncode, done.stdout), (3, ""))
        self.assertIn("built without nvcc", done.stderr)


class Emulated(Case):
    def test_small(self):
        done = subprocess.run(["bash", SCRIPT, "--emulated", "--small", f"--from={sys.argv[3]}", f"--out={self.out}"], capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        result, parts = self.read()
        self.assertTrue(result["complete"] and result["emulated"] and result["small"])
        self.assertEqual([n for n in NAMES if parts[n]["result"] == "passed"], ["machine", "numbers", "bandwidth", "shapes", "cluster"], done.stdout)
        self.assertEqual(parts["cluster"]["passed"], ["model", "step_min"])
        self.assertTrue(all(line["emulated"] and line["of_bound"] <= 1 for name in ("bandwidth", "shapes") for line in parts[name]["lines"]))
        self.assertIn("no figure below is a speed", self.markdown)
        self.assertIn("No figure above is a speed".lower(), done.stdout.lower())
        self.assertTrue(parts["cluster"]["lines"][0]["tokens_agree"], parts["cluster"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[4 if WHAT == "emulated" else 3:], defaultTest="Emulated" if WHAT == "emulated" else "StandIns")
