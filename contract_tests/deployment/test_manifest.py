"""The deployment for Kubernetes, by Ray Serve's schema and the format of deployments."""

from typing import Any

import pytest
import yaml

from contract_tests.own.servers import ROOT
from specllama.deployment import read


@pytest.fixture(scope="module")
def resources() -> dict[str, Any]:
    """The resources of the manifest, by their kinds."""
    text = (ROOT / "packaging" / "rayservice.yaml").read_text("utf-8")
    return {each["kind"]: each for each in yaml.safe_load_all(text)}


def test_ray_serve_accepts_its_config(resources: dict[str, Any]) -> None:
    from ray.serve.schema import ServeDeploySchema

    config = yaml.safe_load(resources["RayService"]["spec"]["serveConfigV2"])
    assert ServeDeploySchema(**config).applications[0].name == "specllama"


def test_its_arguments_are_a_deployment(resources: dict[str, Any]) -> None:
    config = yaml.safe_load(resources["RayService"]["spec"]["serveConfigV2"])
    deployment = read(yaml.safe_dump(config["applications"][0]["args"]), "args")
    [group, _] = resources["RayService"]["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    assert deployment.ingress.resources == {"front": 1}
    assert deployment.ingress.replicas == group["replicas"]
    assert group["rayStartParams"]["resources"] == '"{\\"front\\": 1}"'


def test_the_service_finds_the_ingresses(resources: dict[str, Any]) -> None:
    [group, _] = resources["RayService"]["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    assert resources["Service"]["spec"]["selector"] == group["template"]["metadata"]["labels"]
    [container] = group["template"]["spec"]["containers"]
    [port] = container["ports"]
    [outside] = resources["Service"]["spec"]["ports"]
    assert (port["name"], port["containerPort"]) == (outside["targetPort"], outside["port"])
