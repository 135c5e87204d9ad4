#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the Helm chart in chart/ from base/ and monitoring/, so that the two cannot differ.

    deploy/kubernetes/chart.py [--check]

--check writes nothing: exit code 1 if a file of the chart is not as it would be. What can be set is in
VALUES; each stands for one text of a manifest, which must be there exactly as often as it says.
"""
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
VERSION = re.search(r"VERSION (\d+\.\d+\.\d+)", (HERE.parents[1] / "CMakeLists.txt").read_text())[1]
HEAD = "# SPDX-License-Identifier: Apache-2.0\n# Made by deploy/kubernetes/chart.py: do not edit.\n"

CHART = f"""apiVersion: v2
name: banyan
description: Exact attention over a context too long for one machine, as a service.
type: application
version: {VERSION}
appVersion: "{VERSION}"
kubeVersion: ">=1.29.0-0"
"""
AFFINITY = re.compile(r"( +)affinity:\n(?:\1 .*\n)+")
CONFIG = """apiVersion: v1
kind: ConfigMap
metadata:
  name: banyan
data:
  coordinator.conf: |
{{ .Values.coordinator.conf | indent 4 }}
  worker.conf: |
{{ .Values.worker.conf | indent 4 }}
"""


def values():
    def block(name):
        lines = (HERE / "base" / name).read_text().splitlines()
        return "\n".join(f"    {line}".rstrip() for line in lines if not line.startswith("# SPDX"))
    return f"""# The image, with its tag or digest.
image: banyan
# true: a worker a node, which two copies of a chunk need. false: for clusters of one node.
workerPerNode: true
# Of a cluster with the Prometheus operator.
podMonitor: false
coordinator:
  cpu: "2"
  memory: 4Gi
  storage: 10Gi
  # Options of banyan-coordinator.
  conf: |
{block("coordinator.conf")}
worker:
  replicas: 3
  cpu: "4"
  memory: 8Gi
  storage: 50Gi
  stopSeconds: 120
  # Options of banyan-worker.
  conf: |
{block("worker.conf")}
"""


def put(text, times, old, new):
    if text.count(old) != times:
        raise SystemExit(f"chart.py: {old!r} is there {text.count(old)} times, not {times}")
    return text.replace(old, new)


def template(name):
    text = (HERE / "base" / name).read_text()
    who = name.removesuffix(".yaml")
    if who in ("coordinator", "worker"):
        defaults = {"coordinator": ("2", "4Gi", "10Gi"), "worker": ("4", "8Gi", "50Gi")}[who]
        text = put(text, 1, "image: banyan\n", "image: {{ .Values.image }}\n")
        text = put(text, 2, f'cpu: "{defaults[0]}"', f"cpu: {{{{ .Values.{who}.cpu | quote }}}}")
        text = put(text, 2, f"memory: {defaults[1]}", f"memory: {{{{ .Values.{who}.memory }}}}")
        text = put(text, 1, f"storage: {defaults[2]}", f"storage: {{{{ .Values.{who}.storage }}}}")
        # A changed file replaces the pods, as kustomize's names of config maps do.
        text = put(text, 1, "      annotations:\n", f"      annotations:\n        checksum/config: {{{{ .Values.{who}.conf | sha256sum }}}}\n")
    if who == "worker":
        text = put(text, 1, "replicas: 3", "replicas: {{ .Values.worker.replicas }}")
        text = put(text, 1, "terminationGracePeriodSeconds: 120", "terminationGracePeriodSeconds: {{ .Values.worker.stopSeconds }}")
        found, = AFFINITY.finditer(text)
        text = text[:found.start()] + "{{- if .Values.workerPerNode }}\n" + found[0] + "{{- end }}\n" + text[found.end():]
    return text


def files():
    yield "Chart.yaml", CHART
    yield "values.yaml", values()
    for name in ("priority.yaml", "coordinator.yaml", "worker.yaml", "network.yaml"):
        yield f"templates/{name}", template(name).removeprefix("# SPDX-License-Identifier: Apache-2.0\n")
    yield "templates/config.yaml", CONFIG
    monitor = (HERE / "monitoring/podmonitor.yaml").read_text().removeprefix("# SPDX-License-Identifier: Apache-2.0\n")
    monitor = put(monitor, 1, "x.banyan-worker.banyan.svc", "x.banyan-worker.{{ .Release.Namespace }}.svc")
    yield "templates/podmonitor.yaml", "{{- if .Values.podMonitor }}\n" + monitor + "{{- end }}\n"


def main():
    check, stale = "--check" in sys.argv[1:], []
    for name, text in files():
        path = HERE / "chart" / name
        text = HEAD + text
        if path.is_file() and path.read_text() == text:
            continue
        stale.append(name)
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    if check and stale:
        raise SystemExit(f"chart.py: run it, these are not as it makes them: {', '.join(stale)}")


main()
