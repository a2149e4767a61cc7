"""The first ring: every patch on its own examples; what else it does is told in tests/patches."""

import ast
import io
import re
import tokenize
from collections import Counter

import pytest
from conftest import REPO
from rendering import NAMES, SERIES, SUPPORT, make, once, patches_of

from patcher.core.engine import render

each_patch = pytest.mark.parametrize("name", NAMES)


def comments(source: bytes) -> Counter:
    tokens = tokenize.tokenize(io.BytesIO(source).readline)
    return Counter(token.string for token in tokens if token.type == tokenize.COMMENT)


@pytest.mark.parametrize("series", SERIES)
@pytest.mark.parametrize("shape", ["", "_a.py.txt", "_b.py.txt"])
def test_no_comment_of_upstream_is_lost_in_silence(series, shape):
    """T10: on upstream/ and on tests/shapes, what is gone is what the patches list, and no more."""
    lost, drops = Counter(), Counter()
    for name in ("dataparallel.py", "distributed.py"):
        folder, file = ("tests/shapes", name.replace(".py", shape)) if shape else ("upstream", name)
        source, patches = (REPO / folder / file).read_bytes(), patches_of(series)
        result = render(name, source, patches, SUPPORT)
        assert not result.stale
        lost += comments(source) - comments(result.after)
        drops += Counter(text for patch in patches if name in patch.sites for text in patch.drops)
    assert lost.keys() <= drops.keys()
    if not shape:
        assert lost.keys() == drops.keys()


def tabbed(text: str) -> str:
    return re.sub("^(    )+", lambda m: "\t" * (len(m[0]) // 4), text, flags=re.MULTILINE)


FORMS = {
    "lf": lambda text: text.encode(),
    "crlf": lambda text: text.replace("\n", "\r\n").encode(),
    "tabs": lambda text: tabbed(text).encode(),
    "no final newline": lambda text: text.removesuffix("\n").encode(),
}


def examples(attribute: str) -> list:
    """(patch, form, example) for each example, in each form that makes a difference to it."""
    cases = []
    for name in NAMES:
        for number, example in enumerate(getattr(type(make(name)), attribute)):
            text = example if isinstance(example, str) else example[0]
            for form, shape in FORMS.items():
                if form == "lf" or shape(text) != FORMS["lf"](text):
                    cases.append(pytest.param(name, form, example, id=f"{name}-{number}-{form}"))
    return cases


@pytest.mark.parametrize("name, form, example", examples("changes"))
def test_example_becomes_what_the_patch_says_and_a_second_run_changes_nothing(name, form, example):
    before, after, *options = example
    first, second = (make(name, **(options[0] if options else {})) for _ in range(2))
    result = once(FORMS[form](before), first)
    assert result.decode() == FORMS[form](after).decode()
    assert first.hits and not first.already_done
    assert once(result, second) == result
    assert not second.hits and second.already_done


@pytest.mark.parametrize("name, form, source", examples("leaves"))
def test_look_alike_stays_as_it_is(name, form, source):
    patch = make(name)
    assert once(FORMS[form](source), patch) == FORMS[form](source)
    assert patch.hits == []


@each_patch
def test_patch_has_examples_with_its_needles(name):
    """A statement without a needle is not visited: a patch must not miss its own result."""
    patch = type(make(name))
    assert patch.changes and patch.leaves
    for before, after, *_ in patch.changes:
        assert before != after
        for text in (before, after):
            compile(text, "example", "exec")
            assert any(needle in text.encode() for needle in patch.needles), patch.needles


@each_patch
def test_patch_says_in_one_sentence_why_it_is_there(name):
    patch = make(name)
    assert re.fullmatch(r"[A-Z].* .*[^.]\.", patch.summary())
    assert re.fullmatch(r"https://\S+", patch.origin)


@each_patch
def test_patch_fits_on_one_screen(name):
    assert (REPO / f"patches/{name}.py").read_bytes().count(b"\n") < 100


def test_every_patch_in_the_folder_is_in_a_series():
    patches = {path.stem for path in (REPO / "patches").glob("*.py")} - {"__init__"}
    assert patches == set(NAMES), "patches/__init__.py has to name it"


@each_patch
def test_every_function_of_support_that_a_patch_names_is_there(name):
    """Otherwise it shows only if the built script comes to that line."""
    texts = [text for example in type(make(name)).changes for text in example[:2]]
    for node in (node for text in texts for node in ast.walk(ast.parse(text))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = node.value.id
            if module in SUPPORT and module != "run":  # a variable there
                assert node.attr in _names(SUPPORT[module]), ast.unparse(node)


def _names(source: bytes) -> set[str]:
    body = ast.parse(source).body
    return {node.name for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
