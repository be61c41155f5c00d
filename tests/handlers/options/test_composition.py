"""The composition of tables: the options of a server, a model and an engine process."""

import msgspec
import pytest

from specllama.engine.options import EngineOptions, Names, Options
from specllama.engine.options.declaration import fields, tables
from specllama.handlers.options import NAMES, ServerOptions
from tests.support.options_support import FIELDS

TABLES = [table for table, _ in tables(ServerOptions)]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.__name__)
def test_tables_are_siblings(table: type[msgspec.Struct]) -> None:
    assert table.__bases__ == (msgspec.Struct,)
    assert fields(table)


def test_every_option_of_every_table_has_a_name() -> None:
    assert {name for table in TABLES for name in fields(table)} == FIELDS.keys()
    assert len(FIELDS) == sum(len(fields(table)) for table in TABLES)


def test_an_engine_process_gets_no_secrets_and_no_options_of_the_server() -> None:
    listed = fields(EngineOptions)
    assert not [name for name, field in listed.items() if field.opt.secret]
    groups = {field.opt.group for field in listed.values()}
    assert not {"Logging", "General", "Downloads", "Many models", "Chat templates"} & groups
    of_server = [field.name for field in listed.values() if field.opt.group == "Server"]
    assert sorted(of_server) == ["slot_save_path", "strict_schemas"]


def test_tables_of_http_and_of_the_log_are_no_part_of_the_engine() -> None:
    for name, home in (
        ("port", "specllama.handlers.options"),
        ("ssl_key_file", "specllama.handlers.options"),
        ("log_file", "specllama.handlers.options"),
    ):
        [table] = [table for table in TABLES if name in fields(table)]
        assert table.__module__.startswith(home)


def test_only_options_of_models_may_stand_in_files() -> None:
    of_model = {name for name, field in FIELDS.items() if NAMES.concerns_model(field)}
    assert of_model == fields(Options).keys()
    assert {"ctx_size", "slots", "slot_save_path", "jinja", "hf_token", "tags"} <= of_model
    assert not {"port", "models_max", "verbosity", "help", "cache_list", "responses_db"} & of_model


def test_the_order_has_all_tables() -> None:
    with pytest.raises(TypeError, match="other tables than ServerOptions"):
        Names(ServerOptions, TABLES[1:])
