#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The dashboard's page in a headless Chromium: over real daemons what it shows, its keys, its roles, and what
it does when the coordinator goes; over invented answers its size (256 workers, 10,000 sessions). Skipped
where there is no Chromium.
    page_test.py SOURCE BIN
"""
import pathlib
import re
import sys
import time
import unittest

SOURCE, BIN = (pathlib.Path(a).resolve() for a in sys.argv[1:3])
sys.path.insert(0, str(SOURCE / "tests" / "dashboard"))
import browser  # noqa: E402  (its folder is known only now)
import canned  # noqa: E402
from cluster import Cluster  # noqa: E402

STYLE = SOURCE / "coordinator" / "dashboard" / "page" / "style.css"
ODD = '<img src=x onerror="window.stolen=1">'
# What assistive programs call each thing that can be reached or read out of order, where it has no name.
UNNAMED = """[...document.querySelectorAll('a, button, input, select, canvas, table, img, dialog, [role], [tabindex="0"], section')].filter((e) => {
    if (e.closest('[hidden]') || e.getAttribute('aria-hidden') === 'true' || ['status', 'alert', 'presentation', 'row', 'rowgroup', 'gridcell'].includes(e.getAttribute('role'))) return false;
    const by = e.getAttribute('aria-labelledby');
    const name = e.getAttribute('aria-label') || (by && document.getElementById(by)?.textContent) || (e.labels && [...e.labels].map((l) => l.textContent).join('')) ||
        e.alt || e.caption?.textContent || (e.matches('img[alt=""], table') ? (e.matches('img') ? 'decoration' : e.querySelector('th')?.textContent) : '') || (e.matches('a, button, [role]') ? e.textContent.trim() : '');
    return !name;
}).map((e) => e.outerHTML.slice(0, 120))"""
REACHABLE = """[...document.querySelectorAll('a[href], button, input, select, summary, [tabindex="0"]')].filter((e) => e.checkVisibility() && !e.disabled).length"""


class Page(unittest.TestCase):
    """One browser; each test its own page."""

    @classmethod
    def setUpClass(cls):
        cls.browser = cls.enterClassContext(browser.Browser())

    def open(self, url, **options):
        page = self.browser.page(**options)
        page.home = url.split("#")[0]
        page.go(url)
        return page

    def well(self, page):
        """Nothing of it went wrong, and it has asked its own coordinator alone."""
        self.assertEqual(page.errors, [])
        self.assertEqual([r for r in page.requests if not r.startswith(page.home)], [])
        self.assertGreater(len(page.requests), 5)

    def tab_through(self, page):
        """How many elements the Tab key comes to."""
        page.run("document.activeElement.blur(); window.reached = new Set(); document.addEventListener('focusin', (e) => window.reached.add(e.target))")
        page.key("Tab", 60)
        return page.run("window.reached.size")


class Real(Page):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.cluster = Cluster(BIN)
        cls.addClassCleanup(cls.cluster.stop)
        cls.big = cls.cluster.session("big", 600, "--members=4", "--replicas=2")
        cls.cluster.session(ODD, 8)

    def test_cluster(self):
        page = self.open(self.cluster.url)
        page.wait("document.querySelectorAll('.tree .node').length === 4")
        page.wait("document.querySelectorAll('.tree .edge').length === 3")
        self.assertEqual(page.run("[...document.querySelectorAll('.tree .host-name')].map((e) => e.textContent).sort()"), ["host-0", "host-1"])
        page.wait("document.querySelectorAll('.panel tbody tr').length === 4")
        page.wait("/ready/.test(document.getElementById('health').textContent)")
        page.wait("[...document.querySelectorAll('.events li')].some((e) => /w0/.test(e.textContent))")
        self.assertEqual(page.run(UNNAMED), [])
        self.assertEqual(self.tab_through(page), page.run(REACHABLE))
        self.well(page)

    def test_tree_by_keys(self):
        page = self.open(self.cluster.url)
        page.wait("document.querySelector('.tree .node.current')")
        said = "document.querySelector('.tree-said').textContent"
        page.run("document.querySelector('.tree').focus()")
        self.assertIn("root", page.run(said))
        page.key("ArrowDown")
        child = page.wait(f"/child of/.test({said}) && {said}")
        page.key("ArrowUp")
        page.wait(f"/root/.test({said})")
        page.key("End")
        self.assertNotIn("root", page.run(said))
        self.assertRegex(child, r"^w\d, active, ")
        self.assertEqual(page.run("document.getElementById(document.querySelector('.tree').getAttribute('aria-activedescendant')).getAttribute('role')"), "treeitem")

    def test_sessions_by_keys(self):
        page = self.open(self.cluster.url + "#/sessions")
        page.wait("/big/.test(document.querySelector('.grid-view').textContent)")
        self.assertIn(ODD, page.run("document.querySelector('.grid-view').textContent"))  # as text
        self.assertIsNone(page.run("window.stolen ?? null"))
        page.run("document.querySelector('input[type=search]').focus()")
        page.type("bi")
        page.wait("document.querySelectorAll('.grid-row:not([hidden])').length === 1")
        page.run("document.querySelector('.grid').focus()")
        page.key("Enter")
        page.wait("document.querySelector('main h1').textContent === 'big'")
        self.assertEqual(page.run("location.hash"), f"#/sessions/{self.big}")
        self.assertEqual(page.run("document.title"), "big · Banyan")
        self.well(page)

    def test_filters(self):
        """A filter as long as its box has room for, in any script; and what an address has beyond that is
        said."""
        page = self.open(self.cluster.url + "#/sessions")
        page.wait("/big/.test(document.querySelector('.grid-view').textContent)")
        page.run("document.querySelector('input[type=search]').focus()")
        page.type("\u7532" * 60)
        said = "[...document.querySelectorAll('.empty')].filter((e) => !e.hidden).map((e) => e.textContent).join()"
        page.wait(f"{said} === 'No matching sessions.'")
        page.go(self.cluster.url + "#/sessions?q=" + "a" * 200)
        page.reload()
        page.wait(f"/at most 192 bytes/.test({said})")
        page.run("document.querySelector('input[type=search]').value = ''; document.querySelector('input[type=search]').dispatchEvent(new Event('input'))")
        page.wait("/big/.test(document.querySelector('.grid-view').textContent)")
        self.well(page)

    def test_session(self):
        page = self.open(f"{self.cluster.url}#/sessions/{self.big}/watch")
        page.wait("/Waiting for the next steps/.test(document.body.textContent)")
        for _ in range(2):
            self.cluster.step("big", trace=False)
        page.wait("document.querySelector('.scale') && !document.querySelector('.scale').hidden")
        page.run("document.querySelector('[aria-roledescription=\"heat map\"]').focus()")
        page.key("ArrowRight", 2)
        page.key("ArrowDown")
        page.wait("/^Layer 0, step .*: tokens [0-9,]+ to [0-9,]+, .* % of the attention/.test(document.querySelector('output').textContent)")
        page.wait("/^Mean of 4 steps/.test([...document.querySelectorAll('p.small')].map((e) => e.textContent).find((t) => /steps/.test(t)))")
        self.assertEqual(page.run("document.querySelectorAll('table tbody tr').length >= 8"), True)
        self.assertEqual(page.run(UNNAMED), [])
        self.assertEqual(self.tab_through(page), page.run(REACHABLE))
        self.well(page)

    def test_themes(self):
        page = self.open(self.cluster.url, dark=True)
        page.wait("document.querySelector('.tree .node')")
        back = "getComputedStyle(document.body).backgroundColor"
        dark = page.run(back)
        page.theme(False)
        light = page.run(back)
        self.assertNotEqual(light, dark)
        page.run("document.getElementById('theme').focus()")
        page.key("Enter")
        page.key("Enter")
        self.assertEqual(page.run(back), dark)  # whatever the system says
        page.key("Enter")
        self.assertEqual(page.run(back), light)
        page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-reduced-motion", "value": "reduce"}])
        self.assertEqual(page.run("[...document.querySelectorAll('*')].filter((e) => getComputedStyle(e).animationName !== 'none').length"), 0)

    def test_hidden_pages_do_not_ask(self):
        page = self.open(self.cluster.url)
        page.wait("document.querySelector('.tree .node')")
        page.run("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
        time.sleep(3)  # the polls under way have ended
        before = len(page.requests)
        time.sleep(5)
        self.assertEqual(len(page.requests), before)
        page.run("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
        page.wait("document.getElementById('age').textContent === 'live'")
        self.assertGreater(len(page.requests), before)


class Gone(Page):
    def test_coordinator_goes_and_comes(self):
        cluster = Cluster(BIN, workers=2)
        self.addCleanup(cluster.stop)
        page = self.open(cluster.url)
        page.wait("document.querySelectorAll('.tree .node').length === 2")
        cluster.kill("coordinator")
        page.wait("!document.getElementById('trouble').hidden && /has not answered since/.test(document.getElementById('trouble').textContent)")
        self.assertIn("no answer", page.run("document.getElementById('health').textContent"))
        cluster.start_coordinator()
        page.wait("document.getElementById('trouble').hidden && /ready/.test(document.getElementById('health').textContent)")
        cluster.kill("w1")
        page.wait("/lost/.test(document.querySelector('.panel tbody').textContent)")
        page.wait("[...document.querySelectorAll('.tree .node')].some((e) => /w1, lost/.test(e.getAttribute('aria-label')))")

    def test_token(self):
        cluster = Cluster(BIN, workers=1, token="a-token-of-clients")
        self.addCleanup(cluster.stop)
        page = self.open(cluster.url)
        page.wait("document.getElementById('login').open")
        for wrong in ("not-the-token", "p\u00e4ssw\u00f6rtchen", "\u4ee4\u724c\u4ee4\u724c"):
            page.run("document.getElementById('login-wrong').hidden = true")
            page.type(wrong)
            page.key("Enter")
            page.wait("document.getElementById('login').open && !document.getElementById('login-wrong').hidden")
        self.assertTrue(page.run("document.getElementById('trouble').hidden"))
        page.type(cluster.token)
        page.key("Enter")
        page.wait("!document.getElementById('login').open && document.querySelectorAll('.tree .node').length === 1")
        self.assertEqual(page.run("localStorage.getItem('banyan-token')"), None)
        self.assertEqual(page.run("document.cookie"), "")
        page.go(cluster.url + "#/sessions")
        page.wait("document.querySelector('.grid-view')")
        self.well(page)


class Size(Page):
    """Times are processor times of the page's thread: another process that takes the processor does not
    count."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.server = canned.serve(256, 10000)
        cls.addClassCleanup(cls.server.shutdown)
        cls.url = f"http://127.0.0.1:{cls.server.server_port}/"

    def spent_ms(self, page):
        numbers = {m["name"]: m["value"] for m in page.call("Performance.getMetrics")["metrics"]}
        return 1000 * sum(numbers[n] for n in ("ScriptDuration", "LayoutDuration", "RecalcStyleDuration"))

    def measured(self, url):
        page = self.browser.page(1360, 900)
        page.call("Performance.enable", timeDomain="threadTicks")
        page.home = self.url
        page.go(url)
        return page

    def test_workers(self):
        page = self.measured(self.url)
        page.wait("document.querySelectorAll('.tree .node').length === 256 && document.querySelectorAll('.panel tbody tr').length === 256")
        answers = sum(r.endswith("/workers") for r in page.requests)
        before, asked = self.spent_ms(page), answers
        page.wait(f"performance.now() > {page.run('performance.now()')} + 10000")
        answers = sum(r.endswith("/workers") for r in page.requests) - asked
        each = (self.spent_ms(page) - before) / answers
        print(f"256 workers: {each:.1f} ms of script, style and layout an answer; tasks of the browser {page.run('JSON.stringify(banyanTasks)')}")
        self.assertGreater(answers, 2)
        self.assertLess(each, 50)  # of all tasks of an answer together, so that none is longer
        page.run("document.querySelector('.panel input[type=search]').focus()")
        page.type("lost")
        lost = sum(w["state"] == "lost" for w in self.server.cluster.workers)
        page.wait(f"document.querySelectorAll('.panel tbody tr').length === {lost}")
        self.well(page)

    def test_sessions(self):
        page = self.measured(self.url + "#/sessions")
        page.wait("document.querySelector('.grid').getAttribute('aria-rowcount') === '10001'")
        before, frames = self.spent_ms(page), 100
        page.run(f"""(async () => {{
            const view = document.querySelector('.grid-view');
            for (let i = 0; i <= {frames}; i++) {{
                view.scrollTop = view.scrollHeight * i / {frames};
                await new Promise(requestAnimationFrame);
            }}
        }})()""")
        each = (self.spent_ms(page) - before) / frames
        print(f"10,000 sessions: {each:.1f} ms of script, style and layout a frame of scrolling")
        self.assertLess(each, 16)
        page.wait("[...document.querySelectorAll('.grid-row:not([hidden])')].some((e) => e.getAttribute('aria-rowindex') === '10001' && !e.textContent.startsWith('…'))")
        self.assertLess(page.run("document.querySelectorAll('.grid-row').length"), 60)
        page.run("document.querySelector('.grid').focus()")
        page.key("Home")
        page.key("PageDown", 3)
        page.wait("document.querySelector('.grid-row.current') && document.querySelector('.grid-view').scrollTop > 500")
        self.well(page)

    def test_order_that_has_to_wait(self):
        """Another order is 429 the first time. The page asks again, and shows nothing."""
        page = self.measured(self.url + "#/sessions")
        page.wait("document.querySelector('.grid').getAttribute('aria-rowcount') === '10001'")
        page.run("""window.troubled = 0;
            new MutationObserver(() => window.troubled += !document.getElementById('trouble').hidden).observe(document.getElementById('trouble'), {attributes: true})""")
        page.run("[...document.querySelectorAll('.grid-head button')].find((e) => e.textContent === 'Tokens').click()")
        most = f"{max(s['tokens'] for s in self.server.cluster.sessions):,}"
        page.wait(f"document.querySelector('.grid-row:not([hidden])').textContent.includes('{most}')")
        self.assertEqual(page.run("window.troubled"), 0)
        self.well(page)

    def test_session(self):
        big = max(self.server.cluster.sessions, key=lambda s: s["tokens"])
        page = self.measured(f"{self.url}#/sessions/{big['id']}/watch")
        page.wait("!document.querySelector('.scale').hidden")
        self.assertEqual(page.run(UNNAMED), [])
        self.assertEqual(page.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), True)
        self.well(page)

    def test_events_of_another_term(self):
        """Each is shown once, whatever the term is meanwhile; those of another life are others."""
        cluster = self.server.cluster
        page = self.measured(self.url + "#/events")
        shown, polls = "document.querySelectorAll('.events li').length", "performance.getEntriesByType('resource').filter((e) => /v1.events/.test(e.name)).length"
        page.wait(f"{shown} === 40")
        cluster.term = 13  # raised: the numbers go on
        page.wait(f"{polls} >= {page.run(polls)} + 3")
        self.assertEqual(page.run(shown), 40)
        cluster.events_term = 13
        page.wait(f"{shown} === 80")
        page.wait(f"{polls} >= {page.run(polls)} + 3")
        self.assertEqual(page.run(shown), 80)
        self.well(page)

    def test_narrow(self):
        for view in ("#/", "#/sessions", "#/events"):
            page = self.browser.page(400, 800)
            page.home = self.url
            page.go(self.url + view)
            page.wait("document.getElementById('age').textContent === 'live'")
            self.assertLessEqual(page.run("document.documentElement.scrollWidth"), 400, view)


class Colours(unittest.TestCase):
    """Text on what it stands on, in both themes: WCAG's contrast of 4.5; of marks, 3."""

    TEXTS = ("text", "muted", "accent", "ok", "warn", "bad", "info", "off")
    MARKS = (("compute", "sunken"), ("queue", "panel"), ("accent", "panel"), ("heat-4", "heat-0"))

    @classmethod
    def setUpClass(cls):
        cls.pairs = {name: (light, dark) for name, light, dark in
                     re.findall(r"--([a-z0-9-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)", STYLE.read_text())}

    @staticmethod
    def contrast(one, other):
        def luminance(colour):
            parts = [int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)]
            linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
            return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
        high, low = sorted((luminance(one), luminance(other)), reverse=True)
        return (high + 0.05) / (low + 0.05)

    def test_texts(self):
        self.assertEqual(STYLE.read_text().count("light-dark("), len(self.pairs))
        for theme in (0, 1):
            pairs = [(text, on) for text in self.TEXTS for on in ("bg", "panel", "sunken")] + [("text", "accent-soft"), ("on-accent", "accent")]
            for text, on in pairs:
                self.assertGreaterEqual(self.contrast(self.pairs[text][theme], self.pairs[on][theme]), 4.5, (text, on, theme))
            for mark, on in self.MARKS:
                self.assertGreaterEqual(self.contrast(self.pairs[mark][theme], self.pairs[on][theme]), 3, (mark, on, theme))


if __name__ == "__main__":
    if not browser.find():
        print("skipped: there is no Chromium; deploy/install-deps.sh --dev installs one")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
