"""Tests of how texts become words: what is written in one way is found when asked in another."""

from __future__ import annotations

import unicodedata

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.core.words import TOKENIZER, indexed, phrases, required

#: What is stored, what is asked, and whether it is found.
CASES = [
    # Chinese and Japanese: two signs say as much as a word.
    ("我住在东京大学附近", "东京", True),
    ("我住在东京大学附近", "东京大学在哪里?", True),
    ("我住在北京", "东京", False),
    ("カタカナと漢字の文章です", "漢字", True),
    ("ｶﾀｶﾅ", "カタカナ", True),
    ("私は猫が好きです。犬も。", "猫", True),
    ("私は猫が好きです", "犬", False),
    # Korean words take endings.
    ("서울에서 회의가 있다", "서울", True),
    ("서울에서 회의가 있다", "부산", False),
    # Thai, Lao, Khmer and Burmese have letters, and no spaces.
    ("ฉันทำประกันสุขภาพแล้ว", "ประกัน", True),
    ("ฉันทำประกันสุขภาพแล้ว", "เที่ยวบิน", False),
    ("ຂ້ອຍມັກກິນເຂົ້າ", "ກິນ", True),
    ("ខ្ញុំចូលចិត្តសៀវភៅ", "សៀវភៅ", True),
    ("ကျွန်တော်စာအုပ်ဖတ်တယ်", "စာအုပ်", True),
    # Marks are a part of the word.
    ("मुझे हिन्दी पसंद है", "हिन्दी", True),
    ("मुझे हिन्दी पसंद है", "हद", False),
    ("שָׁלוֹם עולם", "שלום", True),
    ("كِتَابٌ جديد", "كتاب", True),
    (unicodedata.normalize("NFD", "Zürich und Ångström"), "zurich ångström", True),
    ("Größe und Straße", "GRÖSSE strasse", True),
    ("Ελληνικά και Русский", "русский", True),
    # Identifiers, as a whole and by their parts, in any of the ways to write them.
    ("call get_user_name first", "getUserName", True),
    ("call getUserName first", "get_user_name", True),
    ("call getUserName first", "user", True),
    ("HTTPServer crashed", "server", True),
    ("set MAX_RETRIES to 3", "max_retries", True),
    ("it needs python3", "python 3", True),
    ("it needs Python 3.12", "python3", True),
    ("B2B sales", "b2b", True),
    # Addresses, paths, versions.
    ("see https://docs.example.org/setup/linux?x=1", "docs.example.org", True),
    ("see https://docs.example.org/setup/linux?x=1", "linux", True),
    ("write to ada.lovelace@example.org", "ada.lovelace@example.org", True),
    ("write to ada.lovelace@example.org", "lovelace", True),
    ("src/limpet/core/words.py", "words.py", True),
    ("released as v2.3.1", "2.3.1", True),
    ("released as 2.3.1", "v2.3.1", True),
    # Numbers.
    ("it costs 1,000 euros", "1000", True),
    ("it costs 1000 euros", "1,000", True),
    ("es kostet 1.000.000 Euro", "1000000", True),
    ("les 12'500 francs", "12500", True),
    ("room 3.14", "3.14", True),
    # Emoji.
    ("🍕 on Fridays", "🍕", True),
    ("I love it ❤️", "❤", True),
    ("good 👍🏽", "👍", True),
    ("from 🇩🇪", "🇩🇪", True),
    ("from 🇩🇪", "🇩🇰", False),
    ("Limpet™ is free", "limpet", True),
    # What it was before.
    ("Ada doesn't drink tea", "doesn't", True),
    ("l\u2019été à Paris", "ete", True),
]


@pytest.fixture
def table() -> apsw.Connection:
    """A full-text index as ours are."""
    database = apsw.Connection(":memory:")
    database.execute(f'CREATE VIRTUAL TABLE words USING fts5(text, tokenize="{TOKENIZER}")')
    return database


def finds(table: apsw.Connection, match: str) -> bool:
    """Whether something matches."""
    return bool(table.execute("SELECT count(*) FROM words WHERE words MATCH ?", (match,)).get)


@pytest.mark.parametrize(("stored", "asked", "found"), CASES)
def test_what_is_written_is_found_however_it_is_asked(
    table: apsw.Connection, stored: str, asked: str, *, found: bool
) -> None:
    """By any of its words, as a question is; and by all of them, as a search of texts is."""
    table.execute("INSERT INTO words VALUES(?)", (indexed(stored),))
    assert finds(table, " OR ".join(f'"{one}"' for one in phrases(asked))) is found
    if "?" not in asked:
        every = " AND ".join(one for word in asked.split() for one in required(word))
        assert finds(table, every) is found


def test_plain_words_stay_as_they_are() -> None:
    """An index of English text holds that text and nothing else."""
    text = "We met Ada Lovelace on Monday, and she didn't say much: it's 3 o'clock."
    assert indexed(text) == text
    assert list(phrases("didn't she say 3?")) == ["didn", "t", "she", "say", "3"]


@given(st.text())
def test_any_text_can_be_indexed_and_asked_for(text: str) -> None:
    """Nothing in a text is syntax, and what goes in is named in the same way when it goes."""
    database = apsw.Connection(":memory:")
    database.execute(
        "CREATE TABLE own(id INTEGER PRIMARY KEY, text);"
        f'CREATE VIRTUAL TABLE words USING fts5(text, content=own, tokenize="{TOKENIZER}")'
    )
    text = text.encode(errors="replace").decode()
    put, remove = "INSERT INTO words(rowid, text) VALUES(1, ?)", "'delete', 1, ?"
    database.execute(put, (indexed(text),))
    for one in [*(f'"{phrase}"' for phrase in phrases(text)), *required(text)]:
        assert finds(database, one) in (True, False)
    database.execute(f"INSERT INTO words(words, rowid, text) VALUES({remove})", (indexed(text),))
    database.execute("INSERT INTO words(words) VALUES('integrity-check')")
