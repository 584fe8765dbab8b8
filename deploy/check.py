"""What deploy/ promises: manifests that Kubernetes takes, values that cannot hurt, flags that exist.

Run by check.sh, which brings the tools. $HELM is helm; $PACELINE, if set, is a built program, and
then the chart's flags, probes and metrics are tried on it.
"""

import functools
import json
import os
import pathlib
import re
import signal
import subprocess
import tomllib
import unittest
import urllib.request

import jsonschema
import kubernetes_validate
import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent
CHART = ROOT / "deploy/helm/paceline"
EXAMPLES = sorted((ROOT / "deploy/helm/examples").glob("*.yaml"))
MODEL = ROOT / "testdata/models/smollm2-draft-16m.Q8_0.gguf"
HELM = os.environ["HELM"]
PACELINE = os.environ.get("PACELINE")
KUBERNETES = ["1.25", "1.37"]

NAME = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}
PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
LABELS = {"type": "object", "minProperties": 1, "additionalProperties": {"type": "string"}}


def strict(required, **properties):
    return {
        "type": "object",
        "required": required,
        "properties": properties,
        "additionalProperties": False,
    }


def custom(api_version, spec):
    metadata = strict(["name", "labels"], name=NAME, labels=LABELS)
    return strict(
        ["apiVersion", "kind", "metadata", "spec"],
        apiVersion={"const": api_version},
        kind={"type": "string"},
        metadata=metadata,
        spec=spec,
    )


SELECTOR = strict(["matchLabels"], matchLabels=LABELS)
SECRET_KEY = strict(["name", "key"], name=NAME, key={"type": "string"})

# As far as the chart uses them; Kubernetes' own kinds come with kubernetes-validate.
CUSTOM = {
    "InferencePool": custom(
        "inference.networking.k8s.io/v1",
        strict(
            ["selector", "targetPorts", "endpointPickerRef"],
            selector=SELECTOR,
            targetPorts={"type": "array", "minItems": 1, "items": strict(["number"], number=PORT)},
            endpointPickerRef=strict(
                ["name"],
                name=NAME,
                port=strict(["number"], number=PORT),
                failureMode={"enum": ["FailOpen", "FailClose"]},
            ),
        ),
    ),
    "ServiceMonitor": custom(
        "monitoring.coreos.com/v1",
        strict(
            ["selector", "endpoints"],
            selector=SELECTOR,
            endpoints={
                "type": "array",
                "minItems": 1,
                "items": strict(
                    ["port"],
                    port=NAME,
                    path={"type": "string", "pattern": "^/"},
                    interval={"type": "string", "pattern": "^[0-9]+(ms|s|m|h)$"},
                    authorization=strict(
                        ["credentials"], type={"const": "Bearer"}, credentials=SECRET_KEY
                    ),
                ),
            },
        ),
    ),
}


def helm(*args):
    return subprocess.run([HELM, *map(str, args)], capture_output=True, text=True, timeout=60)


def render(*args):
    """The objects that a release would have."""
    done = helm("template", "try", CHART, "--namespace", "llm", *args)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return [doc for doc in yaml.safe_load_all(done.stdout) if doc]


@functools.cache
def variants():
    """What each values file makes, by the file's name."""
    made = [(path.name, render("--values", path)) for path in EXAMPLES]
    return [("defaults", render()), *made]


def of_kind(docs, kind):
    return [doc for doc in docs if doc["kind"] == kind]


def pods(docs):
    return [doc["spec"]["template"] for doc in of_kind(docs, "Deployment")]


def container(pod):
    (only,) = pod["spec"]["containers"]
    return only


def component(pod):
    return pod["metadata"]["labels"]["app.kubernetes.io/component"]


def selected(docs, labels):
    """Components of the pods that have these labels."""
    has = lambda pod: labels.items() <= pod["metadata"]["labels"].items()
    return [component(pod) for pod in pods(docs) if has(pod)]


class Chart(unittest.TestCase):
    def test_helm_finds_nothing_to_say(self):
        for path in [None, *EXAMPLES]:
            with self.subTest(path):
                done = helm("lint", "--strict", CHART, *(["--values", path] if path else []))
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_kubernetes_takes_every_object(self):
        for name, docs in variants():
            for doc in docs:
                with self.subTest(name, kind=doc["kind"]):
                    if doc["kind"] in CUSTOM:
                        jsonschema.validate(doc, CUSTOM[doc["kind"]])
                        continue
                    for version in KUBERNETES:
                        kubernetes_validate.validate(doc, version, strict=True)

    def test_examples_use_every_template(self):
        kinds = {doc["kind"] for _, docs in variants() for doc in docs}
        templates = CHART.glob("templates/*.yaml")
        made = {re.search(r"^kind: (\w+)", path.read_text(), re.M).group(1) for path in templates}
        self.assertEqual(kinds, made)

    def test_what_would_go_wrong_is_refused_in_words(self):
        jobs = "jobs.enabled=true,persistence.enabled=true"
        for values, says in [
            (f"{jobs},replicaCount=2", "one server writes a data directory"),
            (f"{jobs},autoscaling.enabled=true", "one server writes a data directory"),
            ("jobs.enabled=true", "would be lost with the pod"),
            ("persistence.enabled=true,replicaCount=2", "ReadWriteMany"),
            ("autoscaling.enabled=true,autoscaling.minReplicas=9", "more than maxReplicas"),
            ("inferencePool.enabled=true", "endpointPicker.name"),
            (
                "inferencePool.enabled=true,inferencePool.endpointPicker.name=a,"
                "apiKeys.existingSecret=b",
                "without a key",
            ),
            ("serviceMonitor.enabled=true,apiKeys.existingSecret=b", "authSecret.name"),
            ("workers.enabled=true", "workers need queue.url"),
            ("queue.url=nats://a,queue.existingSecret=b", "not both"),
            ("queue.url=http://a", "queue.url"),
            ("replicas=2", "replicas"),
            ("server.maxNumSeqs=0", "maxNumSeqs"),
            ("server.extraArgs={-x}", "extraArgs"),
            ("model=", "model"),
            ("drain.timeoutSeconds=soon", "timeoutSeconds"),
            ("persistence.accessMode=ReadOnlyMany", "accessMode"),
        ]:
            with self.subTest(values):
                done = helm("template", "try", CHART, "--set", values)
                self.assertNotEqual(done.returncode, 0, done.stdout)
                self.assertIn(says, done.stderr)

    def test_every_value_is_in_the_schema(self):
        def check(values, schema, path):
            for name, value in values.items():
                self.assertIn(name, schema["properties"], path)
                below = schema["properties"][name]
                if isinstance(value, dict) and "properties" in below:
                    check(value, below, [*path, name])
            extra = set(schema["properties"]) - set(values) - {"global", "claims"}
            self.assertEqual(extra, set(), path)

        schema = json.loads((CHART / "values.schema.json").read_text())
        check(yaml.safe_load((CHART / "values.yaml").read_text()), schema, [])

    def test_a_pod_has_time_to_drain(self):
        for name, docs in variants():
            with self.subTest(name):
                pod = next(pod for pod in pods(docs) if component(pod) == "server")
                server = container(pod)
                (timeout,) = (a for a in server["args"] if a.startswith("--shutdown-timeout="))
                stop = server.get("lifecycle", {}).get("preStop", {}).get("exec", {})
                before = int(stop.get("command", ["sleep", 0])[1])
                drain = int(timeout.split("=")[1])
                self.assertGreater(pod["spec"]["terminationGracePeriodSeconds"], before + drain)

    def test_one_writer_has_one_pod_at_a_time(self):
        for name, docs in variants():
            for deployment in of_kind(docs, "Deployment"):
                args = container(deployment["spec"]["template"])["args"]
                with self.subTest(name):
                    if any(arg.startswith("--data-dir") for arg in args):
                        self.assertEqual(deployment["spec"]["replicas"], 1)
                        self.assertEqual(deployment["spec"]["strategy"]["type"], "Recreate")

    def test_objects_find_the_servers_and_only_them(self):
        for name, docs in variants():
            with self.subTest(name):
                for service in of_kind(docs, "Service"):
                    self.assertEqual(selected(docs, service["spec"]["selector"]), ["server"])
                for kind in ["PodDisruptionBudget", "InferencePool"]:
                    for doc in of_kind(docs, kind):
                        labels = doc["spec"]["selector"]["matchLabels"]
                        self.assertEqual(selected(docs, labels), ["server"])
                for deployment in of_kind(docs, "Deployment"):
                    labels = deployment["spec"]["selector"]["matchLabels"]
                    own = component(deployment["spec"]["template"])
                    self.assertEqual(selected(docs, labels), [own])
                for monitor in of_kind(docs, "ServiceMonitor"):
                    (service,) = of_kind(docs, "Service")
                    labels = monitor["spec"]["selector"]["matchLabels"]
                    self.assertLessEqual(labels.items(), service["metadata"]["labels"].items())
                for scaler in of_kind(docs, "HorizontalPodAutoscaler"):
                    target = scaler["spec"]["scaleTargetRef"]["name"]
                    server = of_kind(docs, "Deployment")[0]
                    self.assertEqual(target, server["metadata"]["name"])
                    self.assertNotIn("replicas", server["spec"])

    def test_nobody_is_root_and_only_volumes_are_written(self):
        for name, docs in variants():
            for pod in pods(docs):
                with self.subTest(name, component=component(pod)):
                    rules = pod["spec"]["securityContext"]
                    self.assertTrue(rules["runAsNonRoot"] and rules["runAsUser"] > 0)
                    self.assertFalse(pod["spec"]["automountServiceAccountToken"])
                    own = container(pod)["securityContext"]
                    self.assertTrue(own["readOnlyRootFilesystem"])
                    self.assertFalse(own["allowPrivilegeEscalation"])
                    self.assertEqual(own["capabilities"], {"drop": ["ALL"]})
                    mounted = {mount["name"] for mount in container(pod)["volumeMounts"]}
                    self.assertEqual(mounted, {v["name"] for v in pod["spec"]["volumes"]})

    def test_secrets_are_not_written_out(self):
        docs = render("--values", ROOT / "deploy/helm/examples/workers-secret.yaml")
        for pod in pods(docs):
            self.assertIn("--queue=$(QUEUE_URL)", container(pod)["args"])
            env = {var["name"]: var for var in container(pod)["env"]}
            self.assertIn("secretKeyRef", env["QUEUE_URL"]["valueFrom"])
        self.assertEqual(of_kind(docs, "Secret"), [])


def dockerfile(word):
    """What follows each line that starts with this word, continued lines joined."""
    text = (ROOT / "deploy/Dockerfile").read_text().replace("\\\n", " ")
    return [m.group(1) for m in re.finditer(rf"^{word}\s+(.*)$", text, re.M)]


def image_calls():
    """How the image calls the program, as lists of arguments."""
    (start,) = dockerfile("CMD")
    (health,) = dockerfile("HEALTHCHECK")
    program, *health = json.loads(health[health.index("[") :])
    assert [program] == json.loads(dockerfile("ENTRYPOINT")[0])
    return [json.loads(start), health]


class Image(unittest.TestCase):
    def test_versions_agree(self):
        package = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]
        chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
        arguments = dict(arg.split("=") for arg in dockerfile("ARG"))
        self.assertEqual(chart["appVersion"], package["version"])
        self.assertEqual(arguments["VERSION"], package["version"])
        self.assertEqual(arguments["RUST_VERSION"], package["rust-version"])

    def test_image_and_chart_agree(self):
        pod = pods(render())[0]
        (port,) = dockerfile("EXPOSE")
        self.assertEqual(container(pod)["ports"][0]["containerPort"], int(port))
        self.assertIn(f"--port={port}", container(pod)["args"])
        rules = pod["spec"]["securityContext"]
        user = f"{rules['runAsUser']}:{rules['runAsGroup']}"
        self.assertEqual(dockerfile("USER"), [user])
        mounts = [mount["mountPath"] for mount in container(pod)["volumeMounts"]]
        self.assertIn(dockerfile("VOLUME")[0], mounts)


@unittest.skipUnless(PACELINE, "set PACELINE to a built program")
class Program(unittest.TestCase):
    def call(self, *args):
        command = [PACELINE, *args]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    def test_every_call_of_the_chart_and_the_image_is_understood(self):
        calls = [container(pod)["args"] for _, docs in variants() for pod in pods(docs)]
        for args in calls + image_calls():
            with self.subTest(args):
                # Kubernetes puts in what the environment holds. Everything before --help is
                # parsed, values too; nothing is run.
                args = [arg.replace("$(QUEUE_URL)", "nats://queue:4222") for arg in args]
                done = self.call(*args, "--help")
                self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_wrong_flag_would_be_seen(self):
        for wrong in ["--max-num-seqs=0", "--no-such-flag=1"]:
            self.assertNotEqual(self.call("serve", wrong, "--help").returncode, 0, wrong)

    def test_probes_and_metrics_are_there(self):
        args = container(pods(render())[0])["args"]
        place = {"--host": "127.0.0.1", "--port": "0"}
        pairs = (arg.split("=", 1) for arg in args[2:])
        args = [f"{flag}={place.get(flag, value)}" for flag, value in pairs]
        command = [PACELINE, "serve", str(MODEL), *args, "--threads=1", "--num-kv-blocks=32"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
            try:
                self.ask(server)
                server.send_signal(signal.SIGTERM)
                server.stderr.read()
                self.assertEqual(server.wait(timeout=60), 0)
            finally:
                server.kill()

    def ask(self, server):
        found = (re.match(r"ready: http://([\d.]+):(\d+)", line) for line in server.stderr)
        ready = next((match for match in found if match), None)
        self.assertIsNotNone(ready, "the server ended before it was ready")
        host, port = ready.groups()
        pod = container(pods(render())[0])
        for probe in ["startupProbe", "readinessProbe", "livenessProbe"]:
            url = f"http://{host}:{port}{pod[probe]['httpGet']['path']}"
            with urllib.request.urlopen(url, timeout=60) as answer:
                self.assertEqual(answer.status, 200, url)
        self.assertEqual(self.call("health", "--host", host, "--port", port).returncode, 0)
        with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=60) as answer:
            families = set(re.findall(r"^# TYPE (\S+) gauge", answer.read().decode(), re.M))
        scaled = yaml.safe_load((CHART / "values.yaml").read_text())["autoscaling"]["metric"]
        picked = ["num_requests_waiting", "num_requests_running", "kv_cache_usage_perc"]
        self.assertLessEqual({scaled, *(f"vllm:{name}" for name in picked)}, families)


if __name__ == "__main__":
    unittest.main()
