#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deploy/kubernetes and deploy/compose.yaml: by the schemas, where a field that is unknown is an error; by
what they say of each other; and by the daemons, which take every option that stands there, and run with those
of the development overlay.
    manifests.sh SOURCE BIN       (which has the schemas)
"""
import collections
import http.client
import importlib.util
import json
import os
import pathlib
import re
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
import unittest

import helm
import jsonschema
import kubernetes_validate
import kustomize
import yaml

SOURCE, BIN = (pathlib.Path(a).resolve() for a in sys.argv[1:3])
KUBERNETES = SOURCE / "deploy/kubernetes"
FOLDERS = ["base", "overlays/development", "overlays/production"]
VERSIONS = ["1.29.0", "1.37.0"]  # oldest that production asks for, and the newest whose schemas are here
TLS = {"tls-cert": "tls.pem", "tls-key": "tls.key", "tls-ca": "ca.pem"}
WORKER = "pod-0.banyan-worker.banyan.svc"  # what a pod is called in DNS
PATIENCE_S = 120
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40,
         "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}


def size(text):
    number, unit = re.fullmatch(r"([0-9]+)([A-Za-z]*)", str(text)).groups()
    return int(number) * (UNITS[unit] if unit else 1)


def settings(words):
    """What a daemon's own parser makes of a command line: name to value, of those that were given."""
    done = subprocess.run([BIN / words[0], *words[1:], "--print-config"], capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"{words}: {done.stderr}")
    return dict(re.fullmatch(r'([a-z-]+) = "?(.*?)"?', line).groups() for line in done.stdout.splitlines() if line and not line.startswith("#"))


def fits(selector, labels):
    return all(labels.get(key) == value for key, value in selector["matchLabels"].items())


class Kubernetes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.dir.cleanup)
        cls.rendered = {folder: kustomize.render(KUBERNETES / folder) for folder in FOLDERS}

    def each(self, *kinds):
        """The objects of these kinds of all folders, with all objects of that folder."""
        for folder, docs in self.rendered.items():
            for doc in docs:
                if doc["kind"] in kinds:
                    with self.subTest(folder=folder, kind=doc["kind"], name=doc["metadata"]["name"]):
                        yield doc, docs

    @staticmethod
    def pods(docs):
        """Name to the labels and the specification of the pods of each workload."""
        return {d["metadata"]["name"]: (d["spec"]["template"]["metadata"]["labels"], d["spec"]["template"]["spec"])
                for d in docs if d["kind"] == "StatefulSet"}

    def chosen(self, selector, docs):
        """The one workload whose pods a selector chooses."""
        found = [spec for labels, spec in self.pods(docs).values() if fits(selector, labels)]
        self.assertEqual(len(found), 1, f"{selector} chooses {len(found)} workloads")
        return found[0]

    @staticmethod
    def ports(spec):
        return {port["name"]: port["containerPort"] for c in spec["containers"] for port in c["ports"]}

    def words(self, container, docs):
        """Its command line, with its files in a folder of ours and its variables set."""
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.dir.name))
        config, = (d for d in docs if d["kind"] == "ConfigMap")
        for name, text in config["data"].items():
            (folder / name).write_text(text)
        values = {e["name"]: e.get("value") or {"metadata.name": "pod-0", "metadata.namespace": "banyan", "spec.nodeName": "node-1"}[
            e["valueFrom"]["fieldRef"]["fieldPath"]] for e in container["env"]}
        words = [re.sub(r"\$\((\w+)\)", lambda m: values[m[1]], word) for word in container["args"]]
        return [word.replace("--config=/etc/banyan", f"--config={folder}") for word in words]

    # ---- by the schemas ----
    def test_schemas(self):
        for folder, docs in self.rendered.items():
            for doc in docs:
                for version in VERSIONS:
                    with self.subTest(folder=folder, kind=doc["kind"], version=version):
                        kubernetes_validate.validate(doc, version, strict=True)

    def test_schemas_refuse(self):
        """The check is not one that takes anything."""
        doc = next(d for d in self.rendered["base"] if d["kind"] == "StatefulSet")
        doc = json.loads(json.dumps(doc))
        doc["spec"]["template"]["spec"]["containers"][0]["livenessProb"] = {}
        with self.assertRaises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(doc, VERSIONS[-1], strict=True)

    def test_as_kustomize_renders_them(self):
        if not shutil.which("kubectl"):
            self.skipTest("kubectl is not here")
        version = json.loads(subprocess.run(["kubectl", "version", "--client", "-o", "json"], capture_output=True, text=True).stdout or "{}")
        if not version.get("kustomizeVersion", "").startswith("v5"):
            self.skipTest("kubectl is without kustomize 5")

        def in_order(docs):
            return sorted(docs, key=lambda d: (d["kind"], d["metadata"]["name"]))
        for folder, docs in self.rendered.items():
            text = subprocess.run(["kubectl", "kustomize", KUBERNETES / folder], check=True, capture_output=True, text=True).stdout
            theirs = list(yaml.safe_load_all(re.sub(r"\bbanyan-[0-9a-z]{10}\b(?=\n)", "banyan", text)))
            self.assertEqual(in_order(theirs), in_order(docs), folder)

    # ---- by each other ----
    def test_selectors_and_ports(self):
        for doc, docs in self.each("Service"):
            spec = self.chosen({"matchLabels": doc["spec"]["selector"]}, docs)
            for port in doc["spec"]["ports"]:
                self.assertEqual(self.ports(spec)[port["targetPort"]], port["port"])
        for doc, docs in self.each("StatefulSet"):
            service, = (d for d in docs if d["kind"] == "Service" and d["metadata"]["name"] == doc["spec"]["serviceName"])
            self.assertEqual(service["spec"]["clusterIP"], "None")
            self.assertTrue(service["spec"]["publishNotReadyAddresses"])
            template = doc["spec"]["template"]
            self.assertIs(self.chosen(doc["spec"]["selector"], docs), template["spec"])
            rules = template["spec"].get("topologySpreadConstraints", []) + template["spec"].get("affinity", {}).get("podAntiAffinity", {}).get(
                "requiredDuringSchedulingIgnoredDuringExecution", [])
            for rule in rules:
                self.assertIs(self.chosen(rule["labelSelector"], docs), template["spec"])
        for doc, docs in self.each("PodDisruptionBudget"):
            self.chosen(doc["spec"]["selector"], docs)

    def test_network(self):
        """Every port of a pod is in a rule, rules of both ends agree, and only the pods and clients that are
        named get in."""
        for folder, docs in self.rendered.items():
            with self.subTest(folder=folder):
                policies = {d["metadata"]["name"]: d["spec"] for d in docs if d["kind"] == "NetworkPolicy"}
                self.assertEqual(set(policies), set(self.pods(docs)))
                doors, calls = collections.defaultdict(set), collections.defaultdict(set)
                for name, policy in policies.items():
                    spec = self.chosen(policy["podSelector"], docs)
                    self.assertIs(spec, self.pods(docs)[name][1])
                    self.assertEqual(policy["policyTypes"], ["Ingress", "Egress"])
                    for rule in policy["ingress"]:
                        for peer in rule["from"]:
                            who = self.peer(peer, docs)
                            doors[name] |= {(who, port["port"]) for port in rule["ports"]}
                    self.assertEqual({port for _, port in doors[name]}, set(self.ports(spec)))
                    for rule in policy["egress"]:
                        for peer in rule["to"]:
                            calls[name] |= {(self.peer(peer, docs), port["port"]) for port in rule["ports"]}
                self.assertEqual(doors["banyan-coordinator"], {("banyan-worker", "tcp"), ("client", "nng"), ("client", "tcp"), ("monitoring", "http")})
                self.assertEqual(doors["banyan-worker"], {("banyan-coordinator", "edge"), ("banyan-worker", "edge"), ("client", "attach"),
                                                          ("monitoring", "http")})
                self.assertEqual(calls["banyan-coordinator"], {("banyan-worker", "edge"), ("kube-system", 53)})
                self.assertEqual(calls["banyan-worker"], {("banyan-coordinator", "tcp"), ("banyan-worker", "edge"), ("kube-system", 53)})

    def peer(self, peer, docs):
        labels = peer.get("podSelector", {}).get("matchLabels", {})
        if labels == {"banyan-client": "true"}:
            self.assertEqual(peer["namespaceSelector"], {})
            return "client"
        if "namespaceSelector" in peer:
            return peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]
        return next(name for name, (_, spec) in self.pods(docs).items() if spec is self.chosen(peer["podSelector"], docs))

    def test_pods(self):
        """As the namespace's rule 'restricted' asks, and more; each name that a pod uses is of something that
        it has."""
        for doc, docs in self.each("StatefulSet"):
            pod = doc["spec"]["template"]["spec"]
            self.assertEqual(pod["securityContext"], {"runAsNonRoot": True, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532,
                                                      "fsGroupChangePolicy": "OnRootMismatch", "seccompProfile": {"type": "RuntimeDefault"}})
            self.assertFalse(pod["automountServiceAccountToken"])
            container, = pod["containers"]
            self.assertEqual(container["securityContext"], {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                                                            "capabilities": {"drop": ["ALL"]}})
            volumes = {v["name"]: v for v in pod["volumes"]} | {c["metadata"]["name"]: c for c in doc["spec"]["volumeClaimTemplates"]}
            self.assertEqual({m["name"] for m in container["volumeMounts"]}, set(volumes))
            writable = {m["mountPath"] for m in container["volumeMounts"] if not m.get("readOnly")}
            self.assertEqual(writable, {"/var/lib/banyan", "/tmp"})
            keys = {m["mountPath"]: m["subPath"] for m in container["volumeMounts"] if m["name"] == "keys"}
            # A worker's machine has no token: who takes it over is no admin
            held = ["cluster.secret", "token"] if doc["metadata"]["name"] == "banyan-coordinator" else ["cluster.secret"]
            self.assertEqual(keys, {f"/run/banyan/{name}": name for name in held})
            items = volumes["keys"]["secret"].get("items")
            self.assertEqual([i["key"] for i in items] if items else ["cluster.secret", "token"], held)
            files = {m["mountPath"]: m["subPath"] for m in container["volumeMounts"] if m["name"] == "tls"}
            self.assertEqual(files, {f"/run/banyan/{name}": name for name in TLS.values()})
            # No worker has the coordinator's key
            self.assertEqual(volumes["tls"]["secret"]["secretName"], doc["metadata"]["name"].replace("banyan-", "banyan-tls-"))
            for name in ("keys", "tls"):
                self.assertEqual(volumes[name]["secret"]["defaultMode"], 0o440)
            config, = (d for d in docs if d["kind"] == "ConfigMap")
            self.assertEqual(volumes["config"]["configMap"]["name"], config["metadata"]["name"])
            limits, requests = container["resources"]["limits"], container["resources"]["requests"]
            self.assertEqual(set(limits), {"cpu", "memory"})
            self.assertEqual(set(requests), {"cpu", "memory"})
            for name in ("startupProbe", "livenessProbe", "readinessProbe"):
                self.assertIn(container[name]["httpGet"]["port"], self.ports(pod))
                self.assertEqual(container[name]["httpGet"]["scheme"], "HTTPS")
            self.assertEqual(container["terminationMessagePolicy"], "FallbackToLogsOnError")
            annotations = doc["spec"]["template"]["metadata"]["annotations"]
            self.assertEqual(annotations["prometheus.io/port"], str(self.ports(pod)["http"]))
            self.assertEqual(annotations["prometheus.io/scheme"], "https")
        for folder in FOLDERS[1:]:
            for _, pod in self.pods(self.rendered[folder]).values():
                self.assertRegex(pod["containers"][0]["image"], r"^\S+/banyan:(?!latest$)\S+$")

    # ---- by the daemons ----
    def test_options(self):
        """Every option is one of the daemon's own; ports are those of the pod; memory and time are within
        what the pod has."""
        for doc, docs in self.each("StatefulSet"):
            pod = doc["spec"]["template"]["spec"]
            container, = pod["containers"]
            given = settings(self.words(container, docs))
            ports = {int(p) for name in ("listen", "edge-listen", "http") if name in given for p in re.findall(r":([0-9]+)(?:,|$)", given[name])}
            self.assertEqual(ports, set(self.ports(pod).values()))
            self.assertEqual(given["secret-file"], "/run/banyan/cluster.secret")
            self.assertEqual(given.get("token-file"), "/run/banyan/token" if doc["metadata"]["name"] == "banyan-coordinator" else None)
            for option, name in TLS.items():
                self.assertEqual(given[option], f"/run/banyan/{name}")
            self.assertNotIn("insecure", given)
            for name in {"listen", "edge-listen", "coordinator"} & set(given):
                for endpoint in given[name].split(","):
                    self.assertRegex(endpoint, "^(nng[+])?tls://")
            self.assertEqual(given["http-insecure"], "true")
            self.assertTrue(given["store"].startswith("/var/lib/banyan/"))
            if container["args"][0] == "banyan-worker":
                self.assertLessEqual(size(given["memory"]), 0.85 * size(container["resources"]["limits"]["memory"]))
                self.assertNotIn("drain", given)  # to stop is not to leave: the store has its chunks
                self.assertIn("store", given)
                self.assertLessEqual(pod["terminationGracePeriodSeconds"], 300)
                self.assertEqual((given["name"], given["host"], given["advertise"]), ("pod-0", "node-1", WORKER))
                governing = next(d for d in docs if d["kind"] == "StatefulSet" and d["metadata"]["name"] == "banyan-worker")["spec"]["serviceName"]
                self.assertEqual(given["advertise"].split(".")[1:], [governing, "banyan", "svc"])
                service = given["coordinator"].removeprefix("tls://").rsplit(":", 1)
                spec = next(d["spec"] for d in docs if d["kind"] == "Service" and d["metadata"]["name"] == service[0])
                self.assertIn(int(service[1]), [port["port"] for port in spec["ports"]])

    def test_options_refuse(self):
        pod = self.pods(self.rendered["base"])["banyan-worker"][1]
        words = self.words(pod["containers"][0], self.rendered["base"])
        with self.assertRaises(AssertionError):
            settings([*words, "--memori=1G"])

    def test_they_run(self):
        """The development overlay's pods as processes: paths are in a folder of ours, each pod's addresses
        are one of loopback."""
        docs = self.rendered["overlays/development"]
        folder = pathlib.Path(self.dir.name)
        net = f"127.{os.getpid() // 250 % 250 + 1}.{os.getpid() % 250 + 1}"
        for name, text in (("cluster.secret", os.urandom(32).hex() + "\n"), ("token", "a token for a test\n")):
            (folder / name).write_text(text)
            (folder / name).chmod(0o600)
        for words in (["init"], ["issue", "--role=coordinator", f"--host={net}.1,localhost", "--out"], ["issue", "--role=worker", f"--host={net}.2", "--out"]):
            out = [folder / ("banyan-coordinator" if "--role=coordinator" in words else "banyan-worker"), "--name=tls"] if len(words) > 1 else []
            subprocess.run([BIN / "banyanctl", "pki", words[0], folder / "ca", *words[1:], *out], check=True, stdout=subprocess.DEVNULL)
        probes = {}
        for i, name in enumerate(("banyan-coordinator", "banyan-worker")):
            container, = self.pods(docs)[name][1]["containers"]
            words = self.words(container, docs)
            for old, new in (("0.0.0.0", f"{net}.{i + 1}"), ("//banyan-coordinator:", f"//{net}.1:"), (WORKER, f"{net}.2"),
                             *((f"/run/banyan/{file}", f"{folder}/{name}/{file}") for file in TLS.values()), ("/run/banyan/", f"{folder}/"), ("/var/lib/banyan/", f"{folder}/{name}/")):
                words = [word.replace(old, new) for word in words]
            words.append("--http-tls=on")  # as it is where others can reach it
            with open(folder / f"{name}.log", "wb") as log:
                process = subprocess.Popen([BIN / words[0], *words[1:]], stderr=log)
            self.addCleanup(process.wait)
            self.addCleanup(process.kill)
            port = self.ports(self.pods(docs)[name][1])["http"]
            probes |= {(f"{net}.{i + 1}", port, container[p]["httpGet"]["path"]): process for p in ("startupProbe", "livenessProbe", "readinessProbe")}
        for (host, port, path), process in probes.items():
            end = time.monotonic() + PATIENCE_S
            while (status := self.get(host, port, path)) != 200:
                self.assertIn(status, (None, 503), path)  # never 404
                self.assertIsNone(process.poll())
                self.assertLess(time.monotonic(), end, f"{path} at {host} is not 200 but {status}")
                time.sleep(0.1)
        self.assertEqual(self.get(f"{net}.1", 7419, "/no-such-path"), 404)
        ctl = [BIN / "banyanctl", "--endpoint", f"tls://{net}.1:7412", "--token-file", folder / "token", "--tls-ca", folder / "ca/ca.pem", "workers", "-o", "json"]
        seen, = json.loads(subprocess.run(ctl, check=True, capture_output=True, text=True).stdout)
        self.assertEqual((seen["name"], seen["host"], seen["endpoint"]), ("pod-0", "node-1", f"tls://{net}.2:7414"))
        plain = subprocess.run([word.replace("tls://", "tcp://") if isinstance(word, str) else word for word in ctl], capture_output=True, text=True)
        self.assertNotEqual(plain.returncode, 0, plain.stdout)
        for process in dict.fromkeys(reversed(probes.values())):
            process.send_signal(signal.SIGTERM)  # the worker stops, and moves nothing
            self.assertEqual(process.wait(PATIENCE_S), 0)

    @staticmethod
    def get(host, port, path):
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # as the kubelet does
        connection = http.client.HTTPSConnection(host, port, timeout=10, context=context)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except OSError:
            return None
        finally:
            connection.close()


class Chart(unittest.TestCase):
    """deploy/kubernetes/chart: it is made from the base, and gives a cluster the same."""

    CHART = KUBERNETES / "chart"

    @staticmethod
    def by_name(docs):
        return {(d["kind"], d["metadata"]["name"]): d for d in docs}

    def test_it_is_as_it_would_be_made(self):
        done = subprocess.run([sys.executable, "-B", KUBERNETES / "chart.py", "--check"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_it_gives_the_base(self):
        ours, base = self.by_name(helm.render(self.CHART)), self.by_name(kustomize.render(KUBERNETES / "base"))
        del base["Namespace", "banyan"]  # helm install --create-namespace
        config = ours["ConfigMap", "banyan"]["data"]
        for name, text in base["ConfigMap", "banyan"]["data"].items():
            lines = [line for line in text.splitlines() if not line.startswith("# SPDX")]
            self.assertEqual(config.pop(name).splitlines(), lines)
        self.assertEqual(config, {})
        del ours["ConfigMap", "banyan"], base["ConfigMap", "banyan"]
        for doc in ours.values():
            if doc["kind"] == "StatefulSet":
                self.assertRegex(doc["spec"]["template"]["metadata"]["annotations"].pop("checksum/config"), "^[0-9a-f]{64}$")
        self.assertEqual(ours, base)

    def test_its_values(self):
        one = {"image": "r/banyan:1", "workerPerNode": False, "coordinator": {"cpu": "8"},
               "worker": {"replicas": 7, "memory": "120Gi", "storage": "1Ti", "stopSeconds": 300, "conf": "memory = 100G\n"}}
        docs = self.by_name(helm.render(self.CHART, one))
        for doc in docs.values():
            for version in VERSIONS:
                with self.subTest(kind=doc["kind"], version=version):
                    kubernetes_validate.validate(doc, version, strict=True)
        worker, coordinator = docs["StatefulSet", "banyan-worker"]["spec"], docs["StatefulSet", "banyan-coordinator"]["spec"]
        pod = worker["template"]["spec"]
        self.assertEqual((worker["replicas"], pod["terminationGracePeriodSeconds"], pod["containers"][0]["image"]), (7, 300, "r/banyan:1"))
        self.assertNotIn("affinity", pod)
        self.assertEqual(pod["containers"][0]["resources"]["limits"], {"cpu": "4", "memory": "120Gi"})
        self.assertEqual(coordinator["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"], "8")
        self.assertEqual(worker["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"], "1Ti")
        self.assertEqual(docs["ConfigMap", "banyan"]["data"]["worker.conf"], "memory = 100G\n")
        before = self.by_name(helm.render(self.CHART))["StatefulSet", "banyan-worker"]["spec"]["template"]["metadata"]["annotations"]
        self.assertNotEqual(worker["template"]["metadata"]["annotations"]["checksum/config"], before["checksum/config"])
        with self.assertRaises(KeyError):
            helm.evaluate(" .Values.no.such ", {"Values": {}})

    def test_monitors(self):
        """Each daemon's port http by its certificate's name, under the jobs' names that alerts.yaml has."""
        self.assertNotIn(("PodMonitor", "banyan"), self.by_name(helm.render(self.CHART)))
        ours = self.by_name(helm.render(self.CHART, {"podMonitor": True}))["PodMonitor", "banyan"]
        self.assertEqual([ours], kustomize.render(KUBERNETES / "monitoring"))
        other = self.by_name(helm.render(self.CHART, {"podMonitor": True}, "ml"))["PodMonitor", "banyan"]
        self.assertEqual(other["spec"]["podMetricsEndpoints"][0]["tlsConfig"]["serverName"], "x.banyan-worker.ml.svc")
        base = kustomize.render(KUBERNETES / "base")
        alerts = (SOURCE / "deploy/prometheus/alerts.yaml").read_text()
        for point in ours["spec"]["podMetricsEndpoints"]:
            keep, name = point["relabelings"]
            set_, = (d for d in base if d["kind"] == "StatefulSet" and d["metadata"]["labels"]["app.kubernetes.io/component"] == keep["regex"])
            pod = set_["spec"]["template"]
            self.assertTrue(fits(ours["spec"]["selector"], pod["metadata"]["labels"]))
            self.assertIn(point["port"], [p["name"] for p in pod["spec"]["containers"][0]["ports"]])
            self.assertEqual(point["scheme"].upper(), pod["spec"]["containers"][0]["readinessProbe"]["httpGet"]["scheme"])
            self.assertIn(point["tlsConfig"]["ca"]["secret"]["name"], [v["secret"]["secretName"] for v in pod["spec"]["volumes"] if "secret" in v])
            self.assertIn(f'job="{name["replacement"]}"', alerts)


class Priorities(unittest.TestCase):
    def test_two_copies_are_on_two_nodes(self):
        """Where a configuration asks for copies, no node has two workers, but where there is only one."""
        for folder in FOLDERS:
            docs = kustomize.render(KUBERNETES / folder)
            config, = (d["data"] for d in docs if d["kind"] == "ConfigMap")
            copies = int((re.search(r"^replicas = (\d+)", config["coordinator.conf"], re.M) or [0, "1"])[1])
            pods = {d["metadata"]["name"]: d["spec"]["template"]["spec"] for d in docs if d["kind"] == "StatefulSet"}
            apart = "affinity" in pods["banyan-worker"]
            self.assertEqual(apart, copies > 1 and "development" not in folder, folder)
            names = {d["metadata"]["name"] for d in docs if d["kind"] == "PriorityClass"}
            self.assertTrue(all(spec["priorityClassName"] in names for spec in pods.values()))
            budgets = {d["metadata"]["name"]: d["spec"] for d in docs if d["kind"] == "PodDisruptionBudget"}
            self.assertEqual(budgets["banyan-coordinator"]["minAvailable"], 1)
            self.assertEqual(budgets["banyan-worker"]["maxUnavailable"], 1)


class Engine(unittest.TestCase):
    """deploy/kubernetes/examples/vllm, by what the cluster's base says of its clients."""
    @classmethod
    def setUpClass(cls):
        cls.docs = kustomize.render(KUBERNETES / "examples/vllm")
        cls.base = kustomize.render(KUBERNETES / "base")
        deployment, = (d for d in cls.docs if d["kind"] == "Deployment")
        cls.deployment, cls.template = deployment["spec"], deployment["spec"]["template"]
        cls.container, = cls.template["spec"]["containers"]
        cls.values = {e["name"]: e["value"] for e in cls.container["env"]}

    def test_schemas(self):
        for doc in self.docs:
            for version in VERSIONS:
                with self.subTest(kind=doc["kind"], version=version):
                    kubernetes_validate.validate(doc, version, strict=True)

    def test_it_is_let_in(self):
        """Its label is the one that the policies admit, and its endpoint a service and a port of the base."""
        admitted = {tuple(peer["podSelector"]["matchLabels"].items()) for d in self.base if d["kind"] == "NetworkPolicy"
                    for rule in d["spec"]["ingress"] for peer in rule["from"] if peer.get("namespaceSelector") == {}}
        self.assertEqual(len(admitted), 1)
        self.assertTrue(set(admitted.pop()) <= set(self.template["metadata"]["labels"].items()))
        host, port = re.fullmatch("tls://([^:]+):([0-9]+)", self.values["BANYAN_ENDPOINT"]).groups()
        service, namespace = host.split(".")
        spec, = (d["spec"] for d in self.base if d["kind"] == "Service" and (d["metadata"]["name"], d["metadata"]["namespace"]) == (service, namespace))
        self.assertIn(int(port), [p["port"] for p in spec["ports"]])

    def test_what_it_names_is_there(self):
        service, = (d for d in self.docs if d["kind"] == "Service")
        self.assertTrue(fits(self.deployment["selector"], self.template["metadata"]["labels"]))
        self.assertTrue(fits({"matchLabels": service["spec"]["selector"]}, self.template["metadata"]["labels"]))
        port, = self.container["ports"]
        self.assertEqual((service["spec"]["ports"][0]["targetPort"], service["spec"]["ports"][0]["port"]), (port["name"], port["containerPort"]))
        self.assertIn(f"--port={port['containerPort']}", self.container["args"])
        self.assertFalse(self.template["spec"]["enableServiceLinks"])  # VLLM_PORT
        volumes = {v["name"]: v for v in self.template["spec"]["volumes"]}
        self.assertEqual({m["name"] for m in self.container["volumeMounts"]}, set(volumes))
        files = {m["mountPath"] for m in self.container["volumeMounts"] if m["name"] == "keys" and m["mountPath"].endswith(m["subPath"])}
        self.assertEqual(files, {self.values["BANYAN_TOKEN_FILE"], self.values["BANYAN_TLS_CA"]})
        self.assertEqual(volumes["keys"]["secret"]["defaultMode"], 0o440)

    def test_its_variables_are_documented(self):
        page = (SOURCE / "docs/VLLM.md").read_text()
        for name in self.values:
            if name.startswith("BANYAN_"):
                self.assertIn(f"`{name}`", page)


class Compose(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.given = yaml.safe_load((SOURCE / "deploy/compose.yaml").read_text())
        cls.services = cls.given["services"]

    def test_schema(self):
        package = pathlib.Path(importlib.util.find_spec("compose").origin).parent
        schema = json.loads((package / "config/compose_spec.json").read_text())
        check = jsonschema.Draft7Validator(schema).validate
        check(self.given)
        wrong = json.loads(json.dumps(self.given))
        wrong["services"]["coordinator"]["healthchek"] = {}
        with self.assertRaises(jsonschema.ValidationError):
            check(wrong)

    def test_services(self):
        self.assertEqual(sorted(self.services), ["coordinator", "worker-0", "worker-1", "worker-2"])
        volumes = []
        for name, service in self.services.items():
            with self.subTest(name):
                self.assertEqual((service["read_only"], service["cap_drop"], service["security_opt"]), (True, ["ALL"], ["no-new-privileges:true"]))
                self.assertLessEqual(set(service["secrets"]), set(self.given["secrets"]))
                volume, path = service["volumes"][0].split(":")
                self.assertEqual(path, "/var/lib/banyan")
                volumes.append(volume)
                for other in service.get("depends_on", {}):
                    self.assertIn(other, self.services)
        self.assertEqual(sorted(volumes), sorted(self.given["volumes"]))  # each has its own

    def test_options(self):
        names = set()
        for name, service in self.services.items():
            with self.subTest(name):
                given = settings(service["command"])
                self.assertEqual(given["http"], "127.0.0.1:7419")  # what banyanctl probe asks
                held = ["cluster.secret", "token"] if name == "coordinator" else ["cluster.secret"]
                self.assertEqual(service["secrets"], held)
                self.assertEqual([given.get(key) for key in ("secret-file", "token-file")],
                                 [f"/run/secrets/{secret}" for secret in held] + [None] * (2 - len(held)))
                self.assertEqual(service["healthcheck"]["test"][:3], ["CMD", "banyanctl", "probe"])
                subprocess.run([BIN / "banyanctl", *service["healthcheck"]["test"][2:], "--help"], check=True, stdout=subprocess.DEVNULL)
                for port in service.get("ports", []):
                    self.assertIn(f":{port.rsplit(':', 1)[1]}", given["listen"])
                if name != "coordinator":
                    names.add(given["name"])
                    self.assertEqual(given["name"], name)
                    self.assertEqual(given["coordinator"], "tcp://coordinator:7412")
                    self.assertLessEqual(size(given["memory"]), 0.85 * size(service["mem_limit"]))
                    self.assertTrue(given["store"].startswith("/var/lib/banyan/"))
        self.assertEqual(len(names), 3)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
