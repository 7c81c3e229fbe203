"""What `make docs` does beyond mkdocs.yml: a hook for MkDocs, an extension for mkdocstrings."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import griffe
from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent

#: What pages link to that is not in docs/. In the site it lies beside them, under the same name.
BESIDES = ("CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "examples")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the examples, and the pages of the project's root."""
    for name in BESIDES:
        for path in [ROOT / name, *(ROOT / name).rglob("*")]:
            if path.is_file() and path.suffix != ".pyc":
                uri = path.relative_to(ROOT).as_posix()
                files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Make the links that work in a checkout work in the site, whose root is docs/."""
    uri = page.file.src_uri

    def in_the_site(link: re.Match[str]) -> str:
        target = link[1]
        if uri.startswith(BESIDES):
            target = target.replace("docs/", "", 1)
            here = uri
        else:
            here = f"docs/{uri}"
            if "/" not in uri:
                target = target.removeprefix("../")
        if (ROOT / here).parent.joinpath(link[1]).is_dir():  # a site has no page for a directory
            target = target.rpartition("/")[0] + "/README.md" if "/" in target else "README.md"
        return f"]({target}"

    return re.sub(r"\]\(([^)#:\s]+)", in_the_site, markdown)


#: The lines of an example: those with prompts, and the output below them, up to an empty line.
_EXAMPLE = re.compile(r"^( *)>>> .*\n?(?:^(?! *$).*\n?)*", re.MULTILINE)


class Reference(griffe.Extension):
    """Classes are inspected at run time; here they get what inspection leaves out."""

    def on_module_members(self, *, node: Any, mod: griffe.Module, **_: Any) -> None:
        """Leave only what a module offers, its submodules, and what is private and never shown."""
        offered = getattr(node.obj, "__all__", None)
        for name, member in list(mod.members.items()):
            path = member.target_path if isinstance(member, griffe.Alias) else member.path
            hidden = name.startswith("_") or path in sys.modules
            if offered is not None and name not in offered and not hidden:
                del mod.members[name]

    def on_class_members(self, *, node: Any, cls: griffe.Class, **_: Any) -> None:
        """Give the fields of structs, and properties, their types."""
        for name, member in cls.members.items():
            if not isinstance(member, griffe.Attribute):
                continue
            found = vars(node.obj).get(name)
            getter = getattr(found, "fget", None)
            if getter is not None:
                member.annotation = getter.__annotations__.get("return")
            elif type(found).__name__ == "member_descriptor":
                member.annotation = node.obj.__annotations__.get(name)
                member.value = None
                member.labels.clear()
            if found is not None and found.__doc__ == type(found).__doc__:
                member.docstring = None  # that of int, say

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Make Markdown of docstrings: it would take the prompt of an example for a quotation."""
        if obj.docstring is not None:
            text = _EXAMPLE.sub(_as_code, obj.docstring.value)
            obj.docstring.value = re.sub(r"::$", ":", text, flags=re.MULTILINE)


def _as_code(example: re.Match[str]) -> str:
    indent, text = example[1], example[0].rstrip("\n")
    return f"{indent}```pycon\n{text}\n{indent}```\n"
