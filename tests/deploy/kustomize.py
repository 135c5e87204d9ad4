# SPDX-License-Identifier: Apache-2.0
"""The part of kustomize that deploy/kubernetes uses, so that what a cluster would get is known without it:
resources, a namespace, images, config maps of files, patches of RFC 6902. What is not known here is an error,
not left out."""
import pathlib

import yaml

CLUSTER_WIDE = {"Namespace", "PriorityClass"}


def load_all(path):
    return [doc for doc in yaml.safe_load_all(path.read_text()) if doc]


def parts(pointer):
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]


def patch(doc, operations):
    for op in operations:
        *where, last = parts(op["path"])
        at = doc
        for part in where:
            at = at[int(part)] if isinstance(at, list) else at[part]
        if op["op"] == "replace":
            key = int(last) if isinstance(at, list) else last
            at[key]  # KeyError, IndexError: what is replaced has to be there
            at[key] = op["value"]
        elif op["op"] == "remove" and isinstance(at, dict):
            del at[last]  # KeyError: likewise
        elif op["op"] == "add" and last == "-":
            at.append(op["value"])
        elif op["op"] == "add" and isinstance(at, dict):
            at[last] = op["value"]
        else:
            raise ValueError(f"operation {op} is not known here")


def set_image(value, images):
    if isinstance(value, list):
        for item in value:
            set_image(item, images)
    elif isinstance(value, dict):
        if isinstance(value.get("image"), str) and value["image"] in images:
            image = images[value["image"]]
            value["image"] = f"{image['newName']}:{image['newTag']}"
        for item in value.values():
            set_image(item, images)


def render(folder):
    """All objects, with names of config maps as they are written."""
    folder = pathlib.Path(folder)
    given = yaml.safe_load((folder / "kustomization.yaml").read_text())
    known = {"apiVersion", "kind", "namespace", "resources", "images", "configMapGenerator", "patches"}
    if set(given) - known:
        raise ValueError(f"{folder}: {set(given) - known} are not known here")
    docs = []
    for name in given["resources"]:
        path = (folder / name).resolve()
        docs += render(path) if path.is_dir() else load_all(path)
    for made in given.get("configMapGenerator", []):
        data = {name: (folder / name).read_text() for name in made["files"]}
        if made.get("behavior") == "merge":
            old, = (d for d in docs if d["kind"] == "ConfigMap" and d["metadata"]["name"] == made["name"])
            old["data"].update(data)
        else:
            docs.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": made["name"]}, "data": data})
    for one in given.get("patches", []):
        target, = (d for d in docs if d["kind"] == one["target"]["kind"] and d["metadata"]["name"] == one["target"]["name"])
        patch(target, yaml.safe_load((folder / one["path"]).read_text()))
    set_image(docs, {image["name"]: image for image in given.get("images", [])})
    for doc in docs:
        if doc["kind"] not in CLUSTER_WIDE:
            doc["metadata"]["namespace"] = given["namespace"]
    return docs
