"""`specllama deploy`, as far as it needs no cluster; `contract_tests/deployment/` has the rest."""

import re
import signal
from pathlib import Path

import pytest
import yaml

from specllama.commands import deploy
from specllama.deployment import PROCESS_KEYS, read
from specllama.engine.shipped import MODEL_NAME
from specllama.nodes import misfits

ROOT = Path(__file__).parents[3]


def test_the_example_fits_a_machine_with_two_cores() -> None:
    deployment = read(deploy.example(), "example")
    assert deployment.models[MODEL_NAME].replicas == 2
    assert not misfits(deployment, [{"CPU": 2.0}])


def test_the_example_explains_each_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert deploy.main(["--example"]) == 0
    said = capsys.readouterr().out
    assert said == deploy.example()
    assert all(f"#   {key}: " in said for key in PROCESS_KEYS)
    assert max(map(len, said.splitlines())) < 100


def test_the_page_has_each_key_and_valid_files() -> None:
    page = (ROOT / "docs" / "several-machines.md").read_text("utf-8")
    assert all(f"\n| `{key}` | " in page for key in PROCESS_KEYS)
    files = [yaml.safe_load(each) for each in re.findall(r"^```yaml\n(.*?)^```", page, re.M | re.S)]
    arguments = [each for each in files if "models" in each]
    arguments += [each["applications"][0]["args"] for each in files if "applications" in each]
    assert len(arguments) == len(files) > 1
    for each in arguments:
        read(yaml.safe_dump(each, sort_keys=False), "page")


def test_a_check_without_a_cluster_reads_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    path = tmp_path / "deploy.yaml"
    path.write_text(deploy.example())
    assert deploy.main([str(path), "--check"]) == 0
    assert capsys.readouterr().out == f"{path}: {MODEL_NAME} x 2, ingress x 1\n"


@pytest.mark.parametrize(
    ("arguments", "text", "said"),
    [
        ([], None, "name the file of the deployment; --example prints one"),
        (["missing.yaml"], None, "missing.yaml: No such file or directory"),
        (["deploy.yaml"], "models: {", "deploy.yaml:1: "),
        (["deploy.yaml"], "models: {}\n", "deploy.yaml:1: models is empty"),
        (["deploy.yaml"], "server: {port: x}\nmodels: {a: }\n", "deploy.yaml:2: models.a: options"),
        (["--delete"], None, "--delete needs a cluster: --address or RAY_ADDRESS"),
    ],
)
def test_errors_are_one_line(
    arguments: list[str],
    text: str | None,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.chdir(tmp_path)
    if text is not None:
        Path("deploy.yaml").write_text(text)
    assert deploy.main(arguments) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"specllama deploy: error: {said}")


def test_the_second_signal_interrupts() -> None:
    before = signal.getsignal(signal.SIGINT)
    try:
        with deploy.Signals() as signals:
            assert not signals.received
            signal.raise_signal(signal.SIGTERM)
            assert signals.received
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
    finally:
        assert signal.getsignal(signal.SIGINT) == before
