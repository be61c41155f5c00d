"""An application on a free port of this machine, served by a thread of this process."""

import threading

import uvicorn
from starlette.applications import Starlette


class ThreadedServer:
    """Serves `app` from the creation of this object until `stop`."""

    def __init__(self, app: Starlette, name: str) -> None:
        config = uvicorn.Config(app, port=0, log_config=None, lifespan="off", ws="none")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, name=name)
        self._thread.start()
        while not self._server.started:
            if not self._thread.is_alive():
                raise RuntimeError(f"the {name} did not start")
            threading.Event().wait(0.01)
        self.port: int = self._server.servers[0].sockets[0].getsockname()[1]

    def stop(self) -> None:
        self._server.should_exit = self._server.force_exit = True
        self._thread.join()
