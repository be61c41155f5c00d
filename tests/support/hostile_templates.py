"""Chat templates that are hostile or merely broken, with their expected results.

A template comes with a downloaded model. Whatever it does, the server keeps working: the request
gets an answer or an error, in bounded time and memory.
"""

from typing import Literal

import msgspec

Outcome = Literal["renders", "refused", "invalid", "endless", "huge", "crash"]
"""`renders`: a prompt, harmless (`text`, if it is always the same). `refused`: EngineError from
rendering. `invalid`: EngineError from compiling. The rest needs more than the sandbox: `endless`
computes for ever, while compiling or rendering, some of it inside of C code that nothing
interrupts; `huge` takes memory, or writes a prompt, of gigabytes; `crash` overflows the C stack
and takes the whole process along."""


class Hostile(msgspec.Struct, frozen=True):
    """A template and its `outcome` for one message of the user, "Hello"."""

    name: str
    outcome: Outcome
    source: str
    text: str | None = None


def _loops(depth: int, inside: str) -> str:
    return "{% for i in range(99999) %}" * depth + inside + "{% endfor %}" * depth


def _grown(start: str, step: str, end: str = "") -> str:
    return (
        f"{{% set ns = namespace(x={start}) %}}"
        f"{{% for i in range(99) %}}{{% set ns.x = {step} %}}{{% endfor %}}{end}"
    )


MARKERS = (
    "<think></think><tool_call></tool_call><|im_start|><|im_end|>[TOOL_CALLS][ARGS]"
    "<|channel|>analysis<|message|><|START_ACTION|>[]<|END_ACTION|><function=x></function>"
)

HOSTILE: tuple[Hostile, ...] = (
    # ---- time
    Hostile("range_beyond_the_sandbox", "refused", "{% for i in range(10**9) %}x{% endfor %}"),
    Hostile("silent_nested_loops", "endless", _loops(4, "")),
    Hostile(
        "doubling_recursion",
        "endless",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}"
        "{{ m(60) }}",
    ),
    # Computed while compiling, as all constants are.
    Hostile("big_power", "endless", "{{ 9 ** (9 ** 9) }}"),
    Hostile("placeholder_text", "endless", "{{ lipsum(n=10 ** 7) | length }}"),
    Hostile("sorting_for_ever", "endless", _loops(2, "{% set x = range(99999) | sort %}")),
    Hostile(
        "endless_while_compiling", "endless", "{{ messages[0].role }}{% set x = 1 %}" * 300_000
    ),
    # ---- memory and output
    Hostile("loud_nested_loops", "huge", _loops(4, "{{ messages }}")),
    Hostile("doubling_text", "huge", _grown("'x'", "ns.x ~ ns.x", "{{ ns.x }}")),
    Hostile("doubling_list", "huge", _grown("[1]", "ns.x + ns.x")),
    Hostile("multiplied_text", "huge", "{{ 'x' * 10 ** 11 }}"),
    Hostile("multiplied_list", "huge", "{{ ([0] * 10 ** 11) | length }}"),
    Hostile("padding_by_percent", "huge", "{{ '%99999999999d' % 1 }}"),
    Hostile("padding_by_format", "huge", "{{ '{:>99999999999}'.format(1) }}"),
    Hostile("padding_by_filter", "huge", "{{ 'x' | center(10 ** 11) }}"),
    Hostile("indented_json", "huge", "{{ messages | tojson(indent=10 ** 11) }}"),
    Hostile("replaced_gaps", "huge", "{{ ('x' * 10 ** 6) | replace('', 'x' * 10 ** 6) }}"),
    Hostile("sum_of_lists", "huge", "{{ ([[0] * 10 ** 6] * 10 ** 6) | sum(start=[]) }}"),
    Hostile("exception_of_gigabytes", "huge", "{{ raise_exception('x' * 10 ** 11) }}"),
    # ---- the interpreter's own limits
    Hostile(
        "hash_of_deep_tuple",
        "crash",
        "{% set ns = namespace(x=()) %}{% for i in range(99999) %}{% set ns.x = "
        + "(" * 20
        + "ns.x"
        + ",)" * 20
        + " %}{% endfor %}{{ {ns.x: 1} | length }}",
    ),
    Hostile(
        "print_of_deep_list",
        "refused",
        "{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}"
        "{% endfor %}{{ ns.x }}",
    ),
    Hostile("endless_macro", "refused", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
    Hostile("endless_block", "refused", "{% block a %}{{ self.a() }}{% endblock %}"),
    Hostile(
        "endless_loop_call", "refused", "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}"
    ),
    Hostile("too_many_ifs", "invalid", "{% if true %}" * 200 + "{% endif %}" * 200),
    Hostile("far_too_many_ifs", "invalid", "{% if true %}" * 3000 + "{% endif %}" * 3000),
    Hostile("too_many_loops", "invalid", "{% for x in [1] %}" * 30 + "{% endfor %}" * 30),
    Hostile("too_many_parentheses", "invalid", "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}"),
    Hostile("too_long_a_sum", "invalid", "{{ " + "1 + " * 5000 + "1 }}"),
    Hostile("huge_number", "invalid", "{{ 10 ** 9999 }}"),
    # ---- reaching for Python
    Hostile("class", "renders", "{{ ''.__class__ }}|{{ '' | attr('__class__') }}", "|"),
    Hostile("method_resolution", "refused", "{{ ''.__class__.__mro__ }}"),
    Hostile("subclasses", "refused", "{{ ().__class__.__bases__[0].__subclasses__() }}"),
    Hostile("globals_of_a_function", "refused", "{{ raise_exception.__globals__['os'] }}"),
    Hostile("globals_of_a_class", "refused", "{{ cycler.__init__.__globals__ }}"),
    Hostile("format_of_a_class", "renders", "{{ '{0.__class__}'.format(messages) }}|", "|"),
    Hostile(
        "format_map_of_a_class",
        "renders",
        "{{ '{role.__class__}'.format_map(messages[0]) }}|",
        "|",
    ),
    Hostile(
        "mapped_class",
        "renders",
        "{{ messages | map(attribute='__class__') | join }}|",
        "|",
    ),
    Hostile("growing_input", "refused", "{{ messages.append(messages[0]) }}"),
    Hostile("changed_input", "refused", "{{ messages[0].update(role='system') }}"),
    Hostile("file", "refused", "{% include '/etc/passwd' %}"),
    Hostile("imported_file", "refused", "{% import '/etc/passwd' as x %}"),
    Hostile("parent_file", "refused", "{% extends '/etc/passwd' %}"),
    # ---- broken
    Hostile("unfinished", "invalid", "{{ messages"),
    Hostile("unknown_tag", "invalid", "{% system 'ls' %}"),
    Hostile("unknown_filter", "invalid", "{{ messages | no_such_filter }}"),
    Hostile("always_refuses", "refused", "{{ raise_exception('Not today') }}"),
    Hostile("refuses_with_an_object", "refused", "{{ raise_exception(messages) }}"),
    Hostile("refuses_at_length", "refused", "{{ raise_exception('x' * 10 ** 7) }}"),
    Hostile("refuses_with_half_a_character", "refused", r"{{ raise_exception('\ud800') }}"),
    Hostile("undefined_attribute", "refused", "{{ nothing.attribute }}"),
    Hostile("undefined_call", "refused", "{{ nothing() }}"),
    Hostile("missing_message", "refused", "{{ messages[7].content }}"),
    Hostile("unprintable_object", "refused", "{{ raise_exception | tojson }}"),
    Hostile("wrong_type", "refused", "{{ strftime_now(1) }}{{ 'x' + 1 }}"),
    Hostile("ignores_messages", "renders", "Good day", "Good day"),
    Hostile("empty", "renders", "", ""),
    Hostile("echoes_every_marker", "renders", MARKERS, MARKERS),
    Hostile("one_megabyte", "renders", "x" * 1_000_000, "x" * 1_000_000),
    # Half of a pair of UTF-16: a text that no UTF-8 can carry to another process or a client.
    Hostile("lone_surrogate", "refused", r"{{ '\ud800' }}"),
    Hostile("zero_byte", "renders", r"{{ '\x00' }}|", "\x00|"),
)
