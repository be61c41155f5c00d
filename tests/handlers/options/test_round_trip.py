"""Any options, written as a command line or as variables, are read unchanged."""

import shlex
from typing import Any

import msgspec
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from specllama.engine.options import OptionError, unavailable
from specllama.handlers.options import from_environ, parse
from tests.support.option_values import GIVEN, chosen, impossible, texts
from tests.support.options_support import FIELDS, server_options

pytestmark = pytest.mark.slow


@given(chosen(), st.data())
@settings(max_examples=300, deadline=None)
def test_round_trip_through_the_command_line(wanted: dict[str, Any], data: st.DataObject) -> None:
    assume(not impossible(wanted))
    argv = []
    for name, value in wanted.items():
        field = FIELDS[name]
        if field.is_flag:
            forms = field.names if value else field.negative_names
            argv.append(data.draw(st.sampled_from(forms)))
            continue
        for text in texts(field, value):
            form = data.draw(st.sampled_from(field.names))
            is_name = text.split("=")[0].replace("_", "-") in {*unavailable.NAMES} | {
                n for f in FIELDS.values() for n in (*f.names, *f.negative_names)
            }
            apart = data.draw(st.booleans()) and not is_name
            if apart:
                parts = shlex.split(text) if field.opt.n_values > 1 else [text]
                argv += [form, *parts]
            else:
                argv.append(f"{form}={text}")
    assert parse(argv, {}) == server_options(**wanted)


WITH_VARIABLE = {n: f for n, f in GIVEN.items() if f.opt.env}


@given(chosen(tuple(WITH_VARIABLE)))
@settings(max_examples=200, deadline=None)
def test_round_trip_through_variables(wanted: dict[str, Any]) -> None:
    assume(not impossible(wanted))
    environ = {FIELDS[n].opt.env: FIELDS[n].show(value) for n, value in wanted.items()}
    assume(all(environ.values()))  # an empty variable counts as not set
    assert from_environ(environ) == server_options(**wanted)


@given(
    st.lists(
        st.sampled_from(sorted({n for f in FIELDS.values() for n in (*f.names, *f.negative_names)}))
        | st.text()
        | st.sampled_from(["0", "-1", "1e400", "nan", "none", "=", "--=", "-", "--", "\ud800"])
    ),
    st.dictionaries(st.sampled_from([f.opt.env for f in WITH_VARIABLE.values()]), st.text()),
)
@example(["-l", "99999999999+1"], {})
@example(["--chat-template-kwargs", "[" * 100_000], {})
@settings(max_examples=500, deadline=None)
def test_any_input_gives_options_or_an_option_error(
    argv: list[str], environ: dict[str, str]
) -> None:
    # No file is created: with one of the information options nothing is checked on disk.
    try:
        options = parse([*argv, "--version"], environ)
        options.model.engine.generation_defaults()  # a schema's file may be missing
    except OptionError as refusal:
        message = str(refusal)
    else:
        msgspec.msgpack.encode(options)
        assert options.http.hosts()
        message = "fine"
    assert message.isprintable()
