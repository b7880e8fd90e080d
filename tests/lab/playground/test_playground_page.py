"""The page as a file: one, with everything in it."""

from __future__ import annotations

import re
import webbrowser

from critgrad.lab import playground
from critgrad.lab.playground import page


def test_the_page_is_one_file_that_names_no_other(page_file):
    text = page_file.read_text(encoding="utf-8")
    assert len(text) < 8e6
    assert "{{" not in text.split("<script type=", 1)[0]
    assert not re.search(r"""(?:src|href)\s*=\s*["'](?!data:)""", text)
    assert not re.search(r"\b(?:fetch|XMLHttpRequest|WebSocket|import)\s*\(|@import|url\(", text)
    assert "https://" not in text
    assert "<noscript>" in text
    # Nothing inside ends a script element before its time.
    assert text.count("<script") == text.count("</script>") == 3


def test_no_optimizer_is_written_in_javascript():
    text = "\n".join((page.WEB / name).read_text() for name in page.SCRIPTS)
    assert {path.name for path in page.WEB.glob("*.js")} == set(page.SCRIPTS)
    assert not re.search(r"momentum|beta1|betas|exp_avg|Math\.random|\blr \*", text)


def test_a_folder_gets_the_page_under_its_own_name(tmp_path):
    assert playground.build(tmp_path) == tmp_path / page.NAME
    assert playground.build(tmp_path / "new" / "my.html").is_file()


def test_main_opens_the_page_and_says_where_it_is(tmp_path, monkeypatch):
    opened, said = [], []
    monkeypatch.setattr(webbrowser, "open", lambda url: opened.append(url) or True)
    file = playground.main(tmp_path / "p.html", open_browser=True, echo=said.append)
    assert opened == [file.as_uri()]
    assert said == [str(file)]
    playground.main(tmp_path / "q.html", open_browser=False, echo=said.append)
    assert len(opened) == 1


def test_main_without_a_browser_tells_to_open_the_file(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(webbrowser, "open", lambda url: False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    file = playground.main(echo=said.append)
    assert file.is_relative_to(tmp_path.resolve())
    assert "no browser" in said[0]
    assert said[1] == str(file)
