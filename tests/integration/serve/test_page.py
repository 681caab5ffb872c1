"""The page at `/` in a real browser: what a person does with it, and what is shown when something fails."""

from __future__ import annotations

import pytest
from support.omni_server import KEY, OmniServer
from support.served_page import ServedPage

pytestmark = pytest.mark.slow

ATTACH = """
(async () => {
  const canvas = document.createElement('canvas');
  canvas.width = canvas.height = 32;
  canvas.getContext('2d').fillRect(0, 0, 32, 32);
  attach([new File([await new Promise(done => canvas.toBlob(done))], 'square.png', {type: 'image/png'})]);
})()
"""

STAGES = "[...document.querySelectorAll('.stages > span:not(.time)')].map(name => name.textContent)"


@pytest.mark.parametrize(("width", "dark"), [(360, False), (360, True), (1280, False)])
def test_a_chat_with_speech(page: ServedPage, omni: OmniServer, width: int, dark: bool) -> None:
    page.open(omni, width=width, dark=dark)
    page.until("!document.getElementById('speaks').hidden")
    page.browser.evaluate("document.getElementById('speak').click()")
    page.ask("hello")
    page.until_idle()
    assert page.text(".answer"), page.text("#log")
    assert all(word in page.text(".facts") for word in ("first token", "first sound", "real-time factor", "seed"))
    assert page.browser.evaluate(STAGES) == ["thinker", "talker", "token2wav"]
    page.until("document.querySelector('audio').duration > 0.1")
    page.browser.evaluate("document.getElementById('settings').open = true")
    assert page.browser.evaluate("document.documentElement.scrollWidth") == width
    assert page.browser.problems == []
    assert all(url.startswith((omni.url, "data:", "blob:")) for url in page.browser.requests)


def test_a_conversation_has_the_turns_before_it_and_new_forgets_them(page: ServedPage, omni: OmniServer) -> None:
    page.open(omni)
    for prompt in ("first", "second"):
        page.ask(prompt)
        page.until_idle()
    assert page.browser.evaluate("history.map(turn => turn.role)") == ["user", "assistant"] * 2
    page.browser.evaluate("document.getElementById('new').click()")
    assert page.browser.evaluate("[history.length, document.querySelectorAll('.turn').length]") == [0, 0]


def test_escape_stops_an_answer(page: ServedPage, omni: OmniServer) -> None:
    page.open(omni)
    page.until("document.getElementById('model').textContent")
    # An answer of 900 tokens: most end after a hundred, which is before the key is pressed.
    for name, value in (("max_tokens", 900), ("temperature", 2), ("seed", 15)):
        page.browser.evaluate(f"document.querySelector('[name={name}]').value = {value}")
    page.ask("hello")
    page.until("document.querySelector('.answer')?.textContent")
    page.browser.press("Escape")
    page.until_idle()
    assert "Stopped." in page.text("#log")
    assert page.browser.evaluate("document.getElementById('prompt').value") == "", "what is there was answered"


def test_an_image_is_uploaded_with_a_chat(page: ServedPage, omni: OmniServer) -> None:
    page.open(omni)
    page.until("!document.getElementById('attach').hidden")
    page.browser.evaluate(ATTACH)
    page.until("document.querySelector('#files li')")
    page.ask("What is it?")
    page.until_idle()
    assert page.text(".answer") and page.browser.evaluate("document.querySelectorAll('.given img').length") == 1
    assert page.browser.problems == []


def test_an_error_is_shown_and_the_prompt_comes_back(page: ServedPage, omni: OmniServer) -> None:
    page.open(omni)
    page.until("document.getElementById('model').textContent")
    page.browser.evaluate("document.querySelector('[name=temperature]').value = -1")
    page.ask("hello")
    page.until_idle()
    assert "temperature" in page.text(".wrong[role=alert]")
    assert page.browser.evaluate("document.getElementById('prompt').value") == "hello"


def test_a_lost_connection_is_shown_and_the_prompt_comes_back(page: ServedPage, omni: OmniServer) -> None:
    page.open(omni)
    page.until("document.getElementById('model').textContent")
    page.browser.call(
        "Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=-1, uploadThroughput=-1
    )
    page.ask("hello")
    page.until_idle()
    assert page.text(".wrong[role=alert]") == "The connection was lost."
    assert page.browser.evaluate("document.getElementById('prompt').value") == "hello"
    page.until("document.getElementById('state').textContent === 'no connection'")


def test_answers_are_text(page: ServedPage, omni: OmniServer) -> None:
    page.open(omni)
    page.ask("<img src=x onerror=alert(1)>")
    page.until_idle()
    assert page.text(".asked") == "<img src=x onerror=alert(1)>"
    assert page.browser.evaluate("document.querySelectorAll('.asked *, .answer *').length") == 0


def test_boxes_have_the_sampling_and_the_hint_names_random_weights(page: ServedPage, omni: OmniServer) -> None:
    page.open(omni)
    page.until("model?.sampling")
    box = "document.querySelector('#fields [name={}]')"
    assert page.browser.evaluate(f"{box.format('temperature')}.value") == "0"
    assert page.browser.evaluate(f"{box.format('max_tokens')}.value") == "16"
    assert page.browser.evaluate(f"{box.format('temperature')}.parentNode.textContent") == "Temperature (profile)"
    assert page.browser.evaluate(f"{box.format('top_p')}.value") == ""
    assert "Its weights are random: what it makes has no meaning." in page.text("#hint")


def test_a_box_that_nobody_changed_is_not_sent(page: ServedPage, omni: OmniServer) -> None:
    page.open(omni)
    page.until("model?.sampling")
    page.browser.evaluate("document.getElementById('settings').open = true")
    page.browser.evaluate("Object.assign(model.sampling.temperature, {source: 'default'})")
    box = "document.querySelector('#fields [name={}]')"
    assert page.browser.evaluate("JSON.stringify(settings())") == "{}"
    page.browser.evaluate(f"{box.format('top_p')}.focus()")
    page.browser.call("Input.insertText", text="0.5")
    assert page.browser.evaluate(f"{box.format('temperature')}.value") == "1", "what the server does then"
    assert page.browser.evaluate("JSON.stringify(settings())") == '{"top_p":0.5}'
    page.browser.evaluate(f"{box.format('temperature')}.select()")
    page.browser.call("Input.insertText", text="0")
    assert page.browser.evaluate("JSON.stringify(settings())") == '{"temperature":0,"top_p":0.5}'
    page.ask("hello")
    page.until_idle()
    assert "greedy: top p has no effect" in page.text(".facts")


def test_an_image(page: ServedPage, image_server: OmniServer) -> None:
    page.open(image_server, dark=True)
    page.ask("a red lighthouse")
    page.until_idle()
    page.until("document.querySelector('.turn > img')?.naturalWidth === 64")
    assert "image" in page.text(".stages")
    assert page.browser.problems == []


def test_the_key_is_asked_for_and_kept_in_the_tab(page: ServedPage, limited: OmniServer) -> None:
    page.open(limited)
    page.until("document.getElementById('key-dialog').open")
    page.browser.evaluate(f"document.getElementById('key').value = '{KEY}'")
    page.browser.evaluate("document.querySelector('#use-key button').click()")
    page.ask("a red lighthouse")
    page.until_idle()
    page.until("document.querySelector('.turn > img')?.naturalWidth === 64")
    assert page.browser.evaluate("[localStorage.length, sessionStorage.length]") == [0, 1]


def test_it_is_served_without_a_key_and_to_links_of_other_sites(limited: OmniServer) -> None:
    for path, kind in (("/", "text/html"), ("/page.css", "text/css"), ("/page.js", "text/javascript")):
        for method in ("GET", "HEAD"):
            answer = limited.request(method, path, sec_fetch_site="cross-site")
            assert answer.status == 200 and answer.headers["content-type"].startswith(kind)
            assert "default-src 'none'" in answer.headers["content-security-policy"]
            assert bool(answer.body) == (method == "GET")
    assert limited.request("GET", "/v1/models").status == 401
