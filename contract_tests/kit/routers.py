"""Reads and changes the states of a router's models."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import psutil

from contract_tests.kit import contract
from contract_tests.kit.bodies import ENDLESS, path
from contract_tests.kit.events import Event, read_events
from contract_tests.kit.server import OwnServer, Server, wait_until

LOADED, UNLOADED = "loaded", "unloaded"


def models(server: Server) -> dict[str, Any]:
    """Returns the list of models, by their ids."""
    return {model["id"]: model for model in server.get("/models").json()["data"]}


def lasting(model: dict[str, Any]) -> dict[str, Any]:
    """Returns a model of the list without its memory, which may change between two requests."""
    return {name: value for name, value in model.items() if name != "memory"}


def lasting_list(server: Server, path: str) -> dict[str, Any]:
    """Returns the answer of a path with the list of models, without their memory."""
    listed = contract.check(server.get(path))
    return {**listed, "data": [lasting(model) for model in listed["data"]]}


def status(server: Server, name: str) -> Any:
    return models(server)[name]["status"]


def statuses(server: Server) -> dict[str, str]:
    """Returns the status of each model, by the models' ids."""
    return {name: model["status"]["value"] for name, model in models(server).items()}


def loaded(server: Server) -> set[str]:
    return {name for name, value in statuses(server).items() if value == LOADED}


def wait_for(server: Server, name: str, value: str) -> None:
    wait_until(lambda: status(server, name)["value"] == value, f"{name} is {value}")


def wait_until_failed(server: Server, name: str) -> None:
    wait_until(lambda: status(server, name)["failed"], f"{name} could not be loaded")


def set_status(server: Server, name: str, value: str) -> None:
    """Loads or unloads the model, unless it already has that status, and waits until it is done.

    It sends the request without reading the status first: a model that is being unloaded still has
    the status `loaded`, and its work may end before the request arrives.
    """
    change = "load" if value == LOADED else "unload"
    response = server.post(f"/models/{change}", {"model": name})
    contract.check(response, 200 if response.is_success else 400)  # 400: already in that state
    wait_for(server, name, value)


def load_engine(server: OwnServer, name: str) -> psutil.Process:
    """Loads a model that isn't loaded, and returns its engine process."""
    before = {process.pid for process in server.engines()}
    set_status(server, name, LOADED)
    [engine] = [process for process in server.engines() if process.pid not in before]
    return engine


class Following:
    """The events of `GET /models/sse` since it was opened, each checked against the description."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.ended = threading.Event()

    def documents(self) -> list[Any]:
        [name] = ENDLESS
        return contract.check_stream(contract.operations()[name], list(self.events))

    def of(self, name: str) -> list[Any]:
        return [event for event in self.documents() if event["model"] == name]

    def states(self, name: str) -> list[str]:
        """Returns the states of the model in their order."""
        found: list[str] = []
        for event in self.of(name):
            state = event["data"].get("status")
            if state is not None and found[-1:] != [state]:
                found.append(state)
        return found

    def wait_for(self, name: str, states: list[str]) -> None:
        wait_until(lambda: self.states(name) == states, f"{name} has the states {states}")


@contextlib.contextmanager
def following(server: Server) -> Iterator[Following]:
    """Follows the models' events, beginning with the current status of all models."""
    [name] = ENDLESS
    follower = Following()
    n_models = len(models(server))
    with server.http.stream("GET", path(name)) as response:
        assert response.status_code == 200
        assert contract.media_type(response) == "text/event-stream"

        def read() -> None:
            with contextlib.suppress(Exception):  # the client has closed it
                follower.events.extend(read_events(response.iter_raw()))
            follower.ended.set()

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        wait_until(lambda: len(follower.events) >= n_models, "all models have an event")
        yield follower
