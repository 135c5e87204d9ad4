#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of check_words.py: small pages and sources, and what is found in them."""
import contextlib
import io
import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
import check_words

LONG = "word " * 21  # 105 columns


def found(text):
    """The names of the bad words, and 'long', with their lines."""
    prose = check_words.prose_of(text)
    words = [(number, rule.split("'")[1]) for number, rule in check_words.bad_words(text, prose)]
    return sorted(words + [(number, "long") for number, _ in check_words.long_lines(text, prose)])


class Words(unittest.TestCase):
    def test_each_word_is_found(self):
        examples = {
            "nobody": "Nobody reads it.", "somebody": "Somebody's DNS.", "whoever": "Whoever reads it.",
            "for who": "It is for who shows a token.", "told": "A worker is told its layout.", "wants": "The page wants a token.",
            "knows": "A store knows its chunks.", "believes": "Authorities that are believed.",
            "notices": "A daemon notices it.", "heard of": "It has heard of the commit.", "anew": "It starts anew.",
            "come again": "Clients come again.", "that is to": "A copy that is to go.", "let go": "A worker lets go of rows.",
            "struck off": "The copy is struck off.", "of before": "A store of before has none.", "no more": "It works no more.",
            "what there is": "It is filled with what there is.", "says nothing": "What says nothing is left out.",
            "as ever": "It is answered as ever.", "in the midst": "In the midst of a move.", "for ever": "It fails for ever.",
        }
        self.assertEqual(set(examples), set(check_words.WORDS))
        for name, text in examples.items():
            rules = [rule for _, rule in check_words.bad_words(text, check_words.prose_of(text))]
            self.assertEqual(len(rules), 1, (name, rules))
            self.assertTrue(rules[0].endswith(check_words.WORDS[name][1]), rules)

    def test_right_uses(self):
        for text in ("Tell `banyanctl` where the cluster is.", "The log tells you why.", "You know the address.", "It is known.",
                     "Bytes by who you are.", "The day before the upgrade.", "Copies of before the move.", "It takes no more memory.",
                     "It holds no more rows than fit.", "Legal notice", "a note", "newly made", "The rule that is to the left.",
                     "The law of large numbers"):
            self.assertEqual(found(text), [], text)

    def test_over_two_lines_but_not_over_a_paragraph(self):
        self.assertEqual(found("first\nit lets\n  go of rows"), [(2, "lets go")])
        self.assertEqual(found("what it lets\n\ngo of rows"), [])

    def test_code_and_targets_are_not_read(self):
        self.assertEqual(found("`nobody` and ``a ` nobody`` and [x](nobody.md#anew) <!-- anew -->"), [])
        self.assertEqual(found("```sh\nnobody\n" + LONG + "\n```\nanew"), [(5, "anew")])
        self.assertEqual(found("~~~\n```\nnobody\n~~~\nanew"), [(5, "anew")])
        self.assertEqual(found("[anew](x.md)"), [(1, "anew")])

    def comments(self, name, text):
        return [(number, rule.split("'")[1]) for number, rule in sorted(check_words.bad_comments(name, text))]

    def test_comments_of_tests(self):
        self.assertEqual(self.comments("tests/a.c", 'int a; // nobody\n  // it lets\n  // go of "rows"\nf("//nobody"); // `anew`\n'),
                         [(1, "nobody"), (2, "lets go")])
        self.assertEqual(self.comments("tests/a.c", "// word: knows\n// It knows.\n"), [])
        self.assertEqual(self.comments("tests/a.sh", "echo anew # anew\n  # It starts anew.\n"), [(2, "anew")])

    def test_comments_of_python(self):
        text = '"""First\nnobody."""\nx = "nobody"  # anew\n\n\ndef f():\n    """Wants `anew`."""\n    # it\n    # knows\n'
        self.assertEqual(self.comments("a.py", text), [(2, "nobody"), (3, "anew"), (7, "Wants"), (9, "knows")])
        wide = "x" * 120
        text = f'"""First\n{wide}"""\n# {wide}\ny = "{wide}"  # {wide}\n'
        self.assertEqual([number for number, _ in check_words.long_python(text)], [2, 3])

    def test_allowed(self):
        self.assertEqual(found("It knows. <!-- word: knows -->"), [])
        self.assertEqual(found("<!-- word: knows -->\nIt knows.\nIt knows."), [(3, "knows")])
        self.assertEqual(found("It knows anew. <!-- word: anew -->"), [(1, "knows")])


class Width(unittest.TestCase):
    def test_long_lines(self):
        self.assertEqual(found("x\n" + LONG), [(2, "long")])
        self.assertEqual(found("- " + LONG), [(1, "long")])
        self.assertEqual(found("a" * 50 + " " + "b" * 49), [])
        self.assertEqual(found("a" * 50 + " " + "b" * 50), [(1, "long")])

    def test_what_is_not_measured(self):
        for text in ("| " + LONG + "|", "![" + LONG + "](x.png)", "- [link](" + "x" * 100 + ")", "1. `" + LONG + "`", "a" * 120,
                     "<!-- " + LONG + "-->"):
            self.assertEqual(found(text), [], text)
        self.assertEqual(found("[" + LONG + "](x.md)"), [(1, "long")])  # its text can be broken


class Texts(unittest.TestCase):
    def rules(self, name, text):
        return [(number, rule.split("'")[1]) for number, rule in check_words.bad_texts(name, text)]

    def test_literals_of_c(self):
        self.assertEqual(self.rules("worker/a.c", 'x("nobody has it");'), [(1, "nobody")])
        self.assertEqual(self.rules("worker/a.c", 'x(1,\n  "it lets "\n  "go of rows");'), [(2, "lets go")])
        self.assertEqual(self.rules("worker/a.h", 'x("it has %" PRIu64\n  " any "\n "more");'), [(1, "any more")])
        self.assertEqual(self.rules("common/a.h", '"a\\nnobody" \\\n  " has"'), [(1, "nobody")])

    def test_what_is_no_text(self):
        for text in ("// nobody \"knows it\"", "/* nobody \"knows it\" */", 'x("anew");', "nobody(1);", "c = '\"'; // anew \"it is anew\"",
                     'x("it is `anew` here");'):
            self.assertEqual(self.rules("worker/a.c", text), [], text)
        self.assertEqual(self.rules("tests/worker/a.c", 'x("nobody has it");'), [])

    def test_allowed(self):
        self.assertEqual(self.rules("worker/a.c", 'x("nobody has it"); // word: nobody'), [])
        self.assertEqual(self.rules("worker/a.c", 'x("nobody has it anew"); // word: nobody'), [(1, "anew")])

    def test_words_of_short_texts(self):
        examples = {"is no": "it is no address", "any more": "not there any more", "of late": "its speed of late",
                    "goes with": "--a goes with --b", "under way": "2 moves under way"}
        self.assertEqual(set(examples), set(check_words.TEXT_WORDS))
        for name, text in examples.items():
            found_here = list(check_words.bad_texts("client/a.c", f'x("{text}");'))
            self.assertEqual(len(found_here), 1, (name, found_here))
            self.assertTrue(found_here[0][1].endswith(check_words.TEXT_WORDS[name][1]), found_here)
        for text in ("there is no worker", "it is no longer there", "there is no more room"):
            self.assertEqual(self.rules("client/a.c", f'x("{text}");'), [], text)

    def test_other_languages(self):
        python = "def f():\n    \"\"\"Nobody knows.\"\"\"\n    # nobody\n    raise ValueError(f'{x} is told it')\n"
        self.assertEqual(self.rules("client/python/banyan/a.py", python), [(2, "Nobody"), (2, "knows"), (4, "told")])
        self.assertEqual(self.rules("client/python/tests/a.py", python), [])
        self.assertEqual(self.rules("deploy/a.sh", "# nobody has it\necho 'nobody has it'\n"), [(2, "nobody")])
        self.assertEqual(self.rules("docs/man/a.1.in", "What nobody reads\n"), [(1, "nobody")])
        self.assertEqual(self.rules("coordinator/dashboard/page/a.js", "// nobody has it\nx('nobody has it', `it ${x} knows`);"),
                         [(2, "nobody"), (2, "knows")])


class Comments(unittest.TestCase):
    def test_width(self):
        long = "x" * 60 + " " + "y" * 60
        self.assertEqual([n for n, _ in check_words.long_comments(f"a;\n// {long}\n/* {long} */\nb; // {long}\n")], [2, 3, 4])
        self.assertEqual(list(check_words.long_comments("// short\nx(\"" + long + "\");\n")), [])


class Run(unittest.TestCase):
    TREE = {"README.md": "Nobody knows.\n", "docs/A.md": "It is right.\n", "docs/measurements/B.md": "anew\n", "common/README.md": "anew\n",
            "docs/reference/made.md": "<!-- Generated by a tool. -->\nanew\n", "worker/a.c": "// short\n"}

    def run_tool(self, bounds, *more):
        with tempfile.TemporaryDirectory() as root:
            os.environ["GIT_CEILING_DIRECTORIES"] = os.path.dirname(root)
            for name, text in self.TREE.items():
                os.makedirs(os.path.join(root, os.path.dirname(name)), exist_ok=True)
                with open(os.path.join(root, name), "w", encoding="utf-8") as file:
                    file.write(text)
            path = os.path.join(root, "words.txt")
            with open(path, "w", encoding="utf-8") as file:
                file.write(bounds)
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                status = check_words.main(["--root", root, "--bounds", path, *more])
            with open(path, encoding="utf-8") as file:
                return status, out.getvalue(), file.read()

    def test_as_the_file_says(self):
        self.assertEqual(self.run_tool("# head\nREADME.md 2 # and\n")[:2], (0, ""))

    def test_more(self):
        status, out, _ = self.run_tool("README.md 1\n")
        self.assertEqual((status, out), (1, "README.md: 2 bad words and long lines, 1 are allowed: "
                                            "tests/tools/check_words.py --show README.md\n"))
        status, out, _ = self.run_tool("")
        self.assertEqual((status, len(out.splitlines())), (1, 2))
        self.assertTrue(out.startswith("README.md:1: 'Nobody': write 'no one'"), out)

    def test_texts_and_comments(self):
        self.TREE = {"worker/a.c": 'x("nobody has it");\n// ' + "x " * 60 + "\n", "worker/b.h": "// " + "x " * 60 + "\n"}
        self.assertEqual(self.run_tool("worker/a.c 1\nworker/ 2\n")[:2], (0, ""))
        self.assertIn("worker/: 2 long comments, 1 are allowed: tests/tools/check_words.py --show worker/",
                      self.run_tool("worker/a.c 1\nworker/ 1\n")[1])
        self.assertEqual([line.split(" ")[0] for line in self.run_tool("", "--show", "worker/")[1].splitlines()],
                         ["worker/a.c:2:", "worker/b.h:1:"])

    def test_fewer_and_gone(self):
        status, out, _ = self.run_tool("README.md 3\ndocs/A.md 1\ndocs/C.md 1\n")
        self.assertEqual(status, 1)
        self.assertIn("README.md: 2 bad words and long lines, no longer 3: lower it in words.txt", out)
        self.assertIn("docs/A.md: 0 bad words and long lines, no longer 1", out)
        self.assertIn("docs/C.md: stands in words.txt", out)

    def test_show(self):
        _, out, _ = self.run_tool("", "--show", "README.md")
        self.assertEqual([line.split(": write")[0] for line in out.splitlines()], ["README.md:1: 'Nobody'", "README.md:1: 'knows'"])
        with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()):
            self.run_tool("", "--show", "common/README.md")

    def test_write(self):
        self.assertEqual(self.run_tool("# head\nREADME.md 9\n", "--write")[2].split(), ["#", "head", "README.md", "2"])

    def test_a_line_that_makes_no_sense(self):
        for line in ("README.md", "README.md two", "README.md 2\nREADME.md 2"):
            with self.assertRaises(SystemExit):
                self.run_tool(line + "\n")


if __name__ == "__main__":
    unittest.main()
