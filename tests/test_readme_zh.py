"""README.zh-CN.md says what README.md says, in Chinese; its sections about the guide are its own."""

import re

from conftest import REPO

import patches

ENGLISH = (REPO / "README.md").read_text()
CHINESE = (REPO / "README.zh-CN.md").read_text()
OWN = re.compile(r"^## 指南.*?(?=^## )", re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
SHARED = OWN.sub("", CHINESE)


def commands(page: str) -> list[str]:
    """The indented lines of a page, which are commands and what they print, without comments."""
    lines = FENCED.sub("", page).splitlines()
    return [re.sub(r"\s+# .*", "", line) for line in lines if line.startswith("    ")]


def rows(page: str) -> list[list[str]]:
    """What each row of a page's tables has in any language: code, links and numbers, in any order."""
    facts = re.compile(r"`[^`]+`|\]\([^)]+\)|(?<=\| )\d+(?= \|)|(?<=· )\w+")
    return [sorted(facts.findall(line)) for line in page.splitlines() if line.startswith("|")]


def test_the_commands_are_those_of_the_readme_in_its_order():
    assert len(commands(SHARED)) > 15
    assert commands(SHARED) == commands(ENGLISH)


def test_the_tables_have_the_rows_of_the_readme_with_its_numbers_names_and_links():
    assert len(rows(SHARED)) > 15
    assert rows(SHARED) == rows(ENGLISH)


def test_the_links_are_those_of_the_readme():
    links = [set(re.findall(r"\]\(([^)#]+)", page)) for page in (SHARED, ENGLISH)]
    assert links[0] - {"README.md"} == links[1] - {"README.zh-CN.md"}


def test_the_first_table_is_the_series_guide_as_it_edits_the_scripts():
    lines = [line for line in OWN.findall(CHINESE)[0].splitlines() if line.startswith("|")]
    edits = [re.findall(r"`([^`]+)`", line)[-3:] for line in lines[2:]]
    assert [name for *_, name in edits] == list(patches.guide)
    removed = re.findall(r"^-.*", (REPO / "tests/golden/guide.diff").read_text(), re.MULTILINE)
    for before, after, _ in edits:
        assert any(before in line for line in removed), before
        assert before != after


def test_the_options_of_its_own_sections_exist():
    own = re.sub(r".*python -m patcher.*", "", "".join(OWN.findall(CHINESE)))
    page = (REPO / "docs/training.md").read_text()
    named, known = (set(re.findall(r"(?<![\w-])--[\w-]+", text)) for text in (own, page))
    assert len(named) > 5
    assert named <= known


def test_it_is_a_first_screen_too():
    assert CHINESE.count("\n") <= 150
    assert [line for line in CHINESE.split("\n") if len(line) > 120] == []
