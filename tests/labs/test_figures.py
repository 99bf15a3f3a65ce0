"""The figures of the handouts are those that figures.py draws, readable on light and dark pages and without eyes."""
import re
import xml.etree.ElementTree

import figures
from labs import LABS, SOURCE, read
from tap import cases, expect, expect_equal, main, test


@cases([(draw().name, draw()) for draw in figures.FIGURES])
def a_handout_shows_its_figure_and_has_its_text(figure):
    text = read(SOURCE, "labs", figure.name, "figure.svg")
    expect_equal(text, figure.svg(), "the file: python3 tests/labs/figures.py writes it")
    handout = read(SOURCE, "labs", figure.name, "README.md")
    alternative = re.search(r"!\[([^\]]{30,})\]\(figure\.svg\)\n\n<details><summary>The figure as text</summary>\n\n    ", handout)
    expect(alternative and "</details>" in handout, "the handout shows it, with a description and the drawing as text")


@cases([(draw().name, draw()) for draw in figures.FIGURES])
def a_figure_has_a_title_a_description_and_a_dark_style_and_all_lies_inside(figure):
    root = xml.etree.ElementTree.fromstring(figure.svg())
    name = "{http://www.w3.org/2000/svg}"
    expect(len(root.find(name + "title").text) > 10 and len(root.find(name + "desc").text) > 80, "title and description")
    expect("prefers-color-scheme:dark" in root.find(name + "style").text, "a style for dark pages")
    for at in root.iter():
        x, y = (float(at.get(key, 0)) for key in ("x", "y"))
        letter = 5.4 if at.get("class") == "small" else 6.2  # px, on average
        wide = letter * len(at.text) if at.tag == name + "text" else float(at.get("width", 0))
        left = x - wide * {"middle": 0.5, "end": 1}.get(at.get("text-anchor"), 0)
        if at is not root and at.tag != name + "marker":
            expect(left >= -1 and left + wide <= figure.width + 1 and 0 <= y <= figure.height, f"{at.tag} at {x}, {y} lies inside", at.text)


@test
def the_edges_of_lab_1_carry_what_four_ranks_send():
    """2 (4 - 1) buffers in each of the three graphs. A label counts for both directions of its edge, in the ring for the only one."""
    handout = read(SOURCE, "labs", "1-count-bytes", "README.md")
    drawing = re.sub(r"rank \d|2 servers, .* 1 ", "", handout[handout.index("as text</summary>"):handout.index("</details>")])
    for labels in (re.findall(r">([\d./]+)</text>", read(SOURCE, "labs", "1-count-bytes", "figure.svg")), re.findall(r"(?<= )\d[\d./]*", drawing)):
        expect_equal(sum({"1": 2, "1/2": 1, "1.5": 1.5}[label] for label in labels), 3 * 6, f"buffers: {labels}")


if __name__ == "__main__":
    expect(len(LABS) == len(figures.FIGURES), "a figure for every lab")
    main()
