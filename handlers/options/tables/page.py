"""Options of the page at `/`."""

from functools import partial
from typing import Annotated, Any

import msgspec

from specllama.engine.options import text_values
from specllama.engine.options.declaration import Opt
from specllama.engine.options.files import check_readable_directory, read_json_object

_page = partial(Opt, group="Server")


class PageOptions(msgspec.Struct, kw_only=True, frozen=True):
    """Whether and how the server serves its web page."""

    ui: Annotated[
        bool,
        _page(
            names="--ui --webui",
            negative="--no-ui --no-webui",
            env="LLAMA_ARG_UI",
            also_env="LLAMA_ARG_WEBUI",
            help="Serve a web page for chats at /, and the files of --path.",
        ),
    ] = True
    path: Annotated[
        str,
        _page(
            names="--path",
            env="LLAMA_ARG_STATIC_PATH",
            metavar="DIR",
            help="Directory of static files to serve instead of the web page, with index.html at "
            "/. The files need no key. Hidden files and links out of the directory aren't served.",
            default="none (the server's own page)",
            file=check_readable_directory,
        ),
    ] = ""
    ui_config: Annotated[
        dict[str, Any],
        _page(
            names="--ui-config --webui-config",
            env="LLAMA_ARG_UI_CONFIG",
            also_env="LLAMA_ARG_WEBUI_CONFIG",
            metavar="JSON",
            help='Initial settings of the web page, such as {"systemMessage": "Be brief.", '
            '"temperature": 0.5}.',
            default="none",
            read=text_values.json_object,
            show=text_values.show_json,
            replaces=("ui_config_file",),
        ),
    ] = msgspec.field(default_factory=dict)
    ui_config_file: Annotated[
        str,
        _page(
            names="--ui-config-file --webui-config-file",
            env="LLAMA_ARG_UI_CONFIG_FILE",
            also_env="LLAMA_ARG_WEBUI_CONFIG_FILE",
            metavar="FILE",
            help="JSON file with the initial settings of the web page.",
            default="none",
            file=read_json_object,
            replaces=("ui_config",),
        ),
    ] = ""

    def settings(self) -> dict[str, Any]:
        """Returns the settings of --ui-config or --ui-config-file. Raises `OptionError` if the file
        can't be read."""
        return read_json_object(self.ui_config_file) if self.ui_config_file else self.ui_config
