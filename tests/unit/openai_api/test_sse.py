"""Events do not depend on the chunks in which they arrive."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from omni_cli.openai_api.events import EventParser

line_ends = st.sampled_from([b"\n", b"\r\n", b"\r"])
# Anything that is one line: no line end in it.
payloads = st.binary(max_size=20).map(lambda data: data.replace(b"\n", b"").replace(b"\r", b""))
others = st.sampled_from([b": ping", b"event: message", b"id: 7", b"retry: 10", b":"])


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """(what is sent, the data of its events); line ends are mixed, comments and other fields are among it."""
    sent, expected = b"", []
    for lines in draw(st.lists(st.lists(payloads, min_size=1, max_size=3), max_size=6)):
        for line in lines:
            for other in draw(st.lists(others, max_size=1)):
                sent += other + draw(line_ends)
            blank = draw(st.sampled_from([b"", b" "]))
            # Of "data:  x" one blank is cut off and one is data; without a blank, data must not begin with one.
            sent += b"data:" + (b" " if line.startswith(b" ") else blank) + line + draw(line_ends)
        # A lone CR before a LF would be one line's end.
        sent += b"\n" if sent.endswith(b"\n") else b"\r"
        expected.append(b"\n".join(lines))
    return sent, expected


@given(streams(), st.data())
def test_pieces(stream: tuple[bytes, list[bytes]], data: st.DataObject) -> None:
    sent, expected = stream
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=12)))
    parser, found = EventParser(), []
    for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
        found += parser.feed(sent[start:end])
    assert found == expected


def test_byte_by_byte() -> None:
    sent = b'data: {"a": 1}\r\n\r\n: ping\r\n\r\ndata: one\rdata: two\r\rdata: [DONE]\n\n'
    parser = EventParser()
    found = [event for index in range(len(sent)) for event in parser.feed(sent[index : index + 1])]
    assert found == [b'{"a": 1}', b"one\ntwo", b"[DONE]"]


def test_an_event_comes_as_soon_as_it_is_whole() -> None:
    parser = EventParser()
    assert parser.feed(b"data: x\n") == []
    assert parser.feed(b"\ndata: y") == [b"x"]
    assert parser.feed(b"\n\n") == [b"y"]


def test_an_unterminated_event_is_ignored() -> None:
    assert EventParser().feed(b"data: half") == []
