"""What a router's models are doing, and how to have them do something else."""

from typing import Any

from contract_tests.server import Server, wait_until

LOADED, UNLOADED = "loaded", "unloaded"


def models(server: Server) -> dict[str, Any]:
    """The list of models, by their ids."""
    return {model["id"]: model for model in server.get("/models").json()["data"]}


def status(server: Server, name: str) -> Any:
    return models(server)[name]["status"]


def statuses(server: Server) -> dict[str, str]:
    """What each model is doing, by the models' ids."""
    return {name: model["status"]["value"] for name, model in models(server).items()}


def loaded(server: Server) -> set[str]:
    return {name for name, value in statuses(server).items() if value == LOADED}


def wait_for(server: Server, name: str, value: str) -> None:
    wait_until(lambda: status(server, name)["value"] == value, f"{name} is {value}")


def set_status(server: Server, name: str, value: str) -> None:
    """Load or unload the model, unless it is so already, and wait until it is done."""
    wait_until(lambda: status(server, name)["value"] != "loading", f"{name} is not loading")
    if status(server, name)["value"] != value:
        change = "load" if value == LOADED else "unload"
        server.ask(f"/models/{change}", {"model": name})
        wait_for(server, name, value)
