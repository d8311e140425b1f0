"""The documentation holds: blocks of the README and examples in docstrings run, links lead somewhere, names exist."""

import doctest
import importlib
import os
import re
import shlex
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from tests.support.pictures import fill_folder, noise, tiny_network

import suffuse as library

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


# --- the README


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home with photographs, and what the blocks of the README find in the folder they run in."""
    pictures = tmp_path / "home" / "Pictures"
    fill_folder(pictures, 12)
    rng = np.random.default_rng(0)
    for name, rows in {"features": 200, "queries": 3, "new": 5}.items():
        np.save(tmp_path / f"{name}.npy", rng.standard_normal((rows, 8)))
    (tmp_path / "names.txt").write_text("".join(f"{row}.jpg\n" for row in range(200)))
    monkeypatch.chdir(tmp_path)
    return pictures.parent


def test_the_blocks_of_the_readme_run_in_order(home, suffuse, capsys):
    answers = {}
    for language, block in re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL):
        if language == "python":
            exec(compile(block, "README.md", "exec"), {})
            answers["python"] = capsys.readouterr().out
            continue
        assert language == "sh"
        for line in block.splitlines():
            program, *arguments = (word.replace("~", str(home)) for word in shlex.split(line, comments=True))
            if program == "make":
                subprocess.run(["make", "--dry-run", *arguments], cwd=ROOT, check=True, capture_output=True)
            elif arguments[0] == "serve":
                serve_for_a_moment(arguments)
            else:
                assert program == "suffuse"
                if arguments[0] == "images":  # with a small network, which takes a second instead of a minute
                    arguments += ["--model", tiny_network(home / "tiny.onnx"), "--size", "96"]
                elif arguments[0] == "add":
                    noise(60, 60, seed=99).save(home / "Pictures" / "new.jpg")
                code, out, err = suffuse(*arguments)
                assert code == 0, f"{line}\n{err}"
                answers[line.split("#")[0].strip()] = out + err
    assert len(answers["python"].split()) >= 20
    assert "1 picture extracted" in answers["suffuse add photos.index ~/Pictures"]
    assert len(library.Index.open("photos.index")) == 13
    assert len(library.Index.open("vectors.index")) == 200 + 5 - 11


def serve_for_a_moment(arguments):
    """Start the service, with a browser that does nothing, and stop it when it has answered."""
    command = [sys.executable, "-m", "suffuse", *arguments, "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "BROWSER": "true"})
    try:
        address = re.search(r"at (http://127\.0\.0\.1:\d+/) ", process.stderr.readline())[1]
        with urllib.request.urlopen(address + "api/info") as answer:
            assert answer.status == 200
        process.terminate()
        assert process.wait() == 0
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_the_extras_that_the_readme_names_exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {extra for group in re.findall(r"'\.\[([\w,]+)\]'", README) for extra in group.split(",")}
    assert named
    assert named <= set(extras)


# --- docstrings


def test_the_examples_in_docstrings_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = ROOT / "src"
    for path in sorted(source.rglob("*.py")):
        if ">>> " not in path.read_text():
            continue
        name = ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__")
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        result = doctest.testmod(importlib.import_module(name), optionflags=flags)
        assert result.attempted, f"{name}: `>>>` stands where doctest does not look"
        assert not result.failed, name


# --- pages


def test_names_in_the_paper_to_code_table_exist():
    names = set(re.findall(r"`(suffuse\.[\w.]+)`", (ROOT / "docs" / "how-it-works.md").read_text()))
    assert len(names) >= 10
    for name in names:
        parts = name.split(".")
        for split in range(len(parts), 0, -1):
            try:
                found = importlib.import_module(".".join(parts[:split]))
            except ModuleNotFoundError:
                continue
            for attribute in parts[split:]:
                found = getattr(found, attribute)
            break


def test_links_in_the_documentation_lead_somewhere():
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md")]:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            assert "://" in target or (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_page_of_the_lab_is_listed():
    lab = ROOT / "docs" / "lab"
    listed = set(re.findall(r"^\| \[[\w-]+\.md\]\(([\w-]+\.md)\)", (lab / "README.md").read_text(), re.MULTILINE))
    assert listed == {page.name for page in lab.glob("*.md")} - {"README.md"}
