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


def serve(cleanup, workers, sessions, **options):
    server = canned.serve(workers, sessions, **options)
    cleanup(server.server_close)
    cleanup(server.shutdown)
    return server


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
        page.wait("document.querySelectorAll('.fixed tbody tr').length === 4")
        page.wait("/ready/.test(document.getElementById('health').textContent)")
        page.wait("[...document.querySelectorAll('.events .event')].some((e) => /w0/.test(e.textContent))")
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

    def test_session_without_tokens(self):
        self.cluster.ctl("session", "create", "--q-heads=1", "--dim=8", "fresh")
        fresh = self.cluster.api("sessions", q="fresh")["sessions"][0]["id"]
        page = self.open(f"{self.cluster.url}#/sessions/{fresh}")
        page.wait("/No tokens yet/.test(document.querySelector('main').innerText)")
        self.assertEqual(page.run("[...document.querySelectorAll('main canvas, main .key, main summary')].filter((e) => e.checkVisibility()).length"), 0)
        page.wait("document.querySelector('main').innerText.match(/No steps yet/g).length === 2")
        self.well(page)
        page = self.open(f"{self.cluster.url}#/sessions/00000000000000ff")
        page.wait("/There is no session with this id/.test(document.querySelector('main').innerText)")
        self.assertEqual(page.run("[...document.querySelectorAll('main .panel')].filter((e) => e.checkVisibility()).length"), 0)

    def test_worker(self):
        page = self.open(self.cluster.url)
        page.wait("document.querySelectorAll('.fixed tbody tr').length === 4")
        page.run("document.querySelector('.fixed tbody a').click()")
        page.wait("/avx|scalar|neon|sse/.test(document.querySelector('.facts').textContent)")
        self.assertEqual((page.run("document.title"), page.run("location.hash")), ("w0 · Banyan", "#/workers/w0"))
        page.wait("document.querySelectorAll('.events .event').length > 0")
        page.wait("/KV bytes\\n\\S+ KiB of 32.0 MiB/.test(document.querySelector('[aria-labelledby=limits-title]').innerText)")
        self.assertEqual(page.run(UNNAMED), [])
        self.well(page)

    def test_tenants_and_history(self):
        page = self.open(self.cluster.url + "#/tenants")
        page.wait("/^default/.test(document.querySelector('.cards tbody').textContent)")
        self.well(page)
        page = self.open(self.cluster.url)
        page.wait("/takes a sample every 30 s/.test(document.body.innerText) || document.querySelector('.chart')?.checkVisibility()")

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
        page.wait("/lost/.test(document.querySelector('.fixed tbody').textContent)")
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
        page.run("window.before = true; document.getElementById('logout').click()")
        page.wait("!window.before && document.getElementById('login').open")
        self.assertEqual(page.run("[sessionStorage.length, document.querySelectorAll('.grid-row').length, document.getElementById('logout').hidden, document.getElementById('login-wrong').hidden]"),
                         [0, 0, True, True])
        made = cluster.ctl("token", "create", "reader", "--tenant", "research", "--access", "user")
        page.type(re.search(r"\bbanyan_\S+|\S{32,}", made).group())
        page.key("Enter")
        page.wait("/requires a token with access operator or admin/.test(document.getElementById('login-wrong').textContent)")
        self.assertEqual(page.run("[document.getElementById('login').open, document.querySelectorAll('.tree .node').length, sessionStorage.length]"), [True, 0, 0])
        page.type(cluster.token)
        page.key("Enter")
        page.run("location.hash = '#/tenants'")
        page.wait("/research/.test(document.querySelector('.cards tbody').textContent)")


class Size(Page):
    """Times are processor times of the page's thread: another process that takes the processor does not
    count."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.server = serve(cls.addClassCleanup, 256, 10000)
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
        page.wait("document.querySelectorAll('.tree .node').length === 256 && document.querySelectorAll('.fixed tbody tr').length === 256")
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
        page.wait(f"document.querySelectorAll('.fixed tbody tr').length === {lost}")
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
        page = self.measured(self.url + "#/events?group=0")
        shown, polls = "document.querySelectorAll('.events .event').length", "performance.getEntriesByType('resource').filter((e) => /v1.events/.test(e.name)).length"
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
        for view in ("#/", "#/sessions", "#/events", "#/tenants", "#/workers/w003"):
            page = self.browser.page(400, 800)
            page.home = self.url
            page.go(self.url + view)
            page.wait("document.getElementById('age').textContent === 'live'")
            self.assertLessEqual(page.run("document.documentElement.scrollWidth"), 400, view)


SEEN = """(e) => {
    const box = e.getBoundingClientRect(), cell = e.closest('td, [role=gridcell]').getBoundingClientRect();
    return box.width > 0 && box.left >= cell.left - 1 && box.right <= cell.right + 1;
}"""
CUT = """[...document.querySelectorAll('%s')].filter((e) => e.checkVisibility() && e.scrollWidth > e.clientWidth + 1).map((e) => e.textContent)"""
# Points of edges between hosts that lie in the box of a third host.
CROSSED = """[...document.querySelectorAll('.tree .edge.between')].flatMap((edge) => {
    const boxes = [...document.querySelectorAll('.tree rect.host')].map((e) => e.getBBox()), length = edge.getTotalLength();
    const within = (p) => boxes.findIndex((b) => p.x > b.x + 1 && p.x < b.x + b.width - 1 && p.y > b.y + 1 && p.y < b.y + b.height - 1);
    const own = new Set([within(edge.getPointAtLength(0)), within(edge.getPointAtLength(length))]);
    return Array.from({length: 200}, (_, i) => within(edge.getPointAtLength(length * i / 199))).filter((at) => at >= 0 && !own.has(at));
}).length"""


class Looks(Page):
    """How the page is laid out, with names as clusters have them: alike for many letters."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.server = serve(cls.addClassCleanup, 42, 400, name="gpu-node-a100-rack{:03}-worker-0")
        cls.url = f"http://127.0.0.1:{cls.server.server_port}/"

    def ready(self, view="#/", width=1360, height=900):
        page = self.open(self.url + view, width=width, height=height)
        page.wait("document.getElementById('age').textContent === 'live' && document.querySelector('.tile:last-child .value').textContent !== '–'")
        return page

    def test_names_are_cut_in_the_middle(self):
        for width in (1360, 1100, 390):
            page = self.ready(width=width)
            page.wait("document.querySelectorAll('.fixed tbody tr').length === 42")
            ends = page.run("[...document.querySelectorAll('.fixed td:first-child .tail')].map((e) => e.textContent)")
            self.assertEqual(len(set(ends)), 42)
            self.assertEqual(page.run(f"[...document.querySelectorAll('.fixed td:first-child .tail')].every({SEEN})"), True, width)
            self.assertEqual(page.run("document.querySelector('.fixed td:first-child').textContent"), "gpu-node-a100-rack000-worker-0")
        page.run("location.hash = '#/workers/' + encodeURIComponent('gpu-node-a100-rack041-worker-0')")
        page.wait("/lost/.test(document.querySelector('.crumbs').textContent)")
        self.well(page)

    def test_names_have_the_room_there_is(self):
        page = self.ready(width=1700)
        page.wait("document.querySelectorAll('.fixed tbody tr').length === 42")
        self.assertEqual(page.run(CUT % ".fixed td .head"), [])

    def test_edges_pass_no_box(self):
        for width in (1360, 390):  # hosts in one row, and in a block
            page = self.ready(width=width)
            page.wait("document.querySelectorAll('.tree .edge.between').length === 4")
            self.assertEqual(page.run(CROSSED), 0, width)

    def test_idle_hosts_stand_in_rows(self):
        server = serve(self.addCleanup, 40, 50)
        server.cluster.planned = 2
        for i, w in enumerate(server.cluster.workers):
            w["host"] = f"node-{i:02}"
        page = self.open(f"http://127.0.0.1:{server.server_port}/", width=1360, height=900)
        page.wait("document.querySelectorAll('.tree rect.host').length === 40")
        self.assertEqual(page.run("document.querySelector('.tree').scrollWidth <= document.querySelector('.tree').clientWidth"), True)
        self.assertEqual(page.run("[...document.querySelectorAll('.tree .host-name')].some((e) => e.textContent === 'Not in this tree')"), True)
        self.assertGreater(page.run("new Set([...document.querySelectorAll('.tree rect.host')].map((e) => e.getAttribute('y'))).size"), 2)
        self.assertEqual(page.run(CROSSED), 0)

    def test_phone(self):
        page = self.ready("#/sessions", 390, 844)
        page.wait("/tokens/.test(document.querySelector('.grid-row').textContent)")
        self.assertLess(page.run("document.getElementById('summary').offsetHeight"), 844 / 5)
        self.assertEqual(page.run(CUT % ".grid-row:not([hidden]) > *"), [])
        self.assertRegex(page.run("document.querySelector('.grid-row').innerText.replace(/\\s+/g, ' ')"), r"^agent-\d+ \S+ ?active [0-9,]+ tokens \S+ \S+iB .* idle$")
        page.run("document.querySelector('select.narrow').value = 'tokens down'; document.querySelector('select.narrow').dispatchEvent(new Event('change'))")
        most = f"{max(s['tokens'] for s in self.server.cluster.sessions):,}"
        page.wait(f"document.querySelector('.grid-row:not([hidden])').textContent.includes('{most}')")
        self.assertIn("sort=tokens&order=down", page.run("location.hash"))
        page = self.ready("#/", 390, 844)
        page.wait("document.querySelectorAll('.fixed tbody tr').length === 42")
        self.assertEqual(page.run(CUT % ".fixed td, .cell-bar"), [])
        page = self.ready("#/tenants", 390, 844)
        page.wait("document.querySelectorAll('.cards tbody tr').length === 5")
        self.assertEqual(page.run(CUT % ".cards td"), [])

    def test_headings_are_nouns(self):
        big = max(self.server.cluster.sessions, key=lambda s: s["tokens"])
        worker = self.server.cluster.workers[0]["name"]
        summary = ["Workers", "Sessions", "KV memory", "Steps", "Median step", "Missing copies", "Errors"]
        for view, headings in (("#/", ["Tree", "Events", "Workers", "Last hour"]), ("#/sessions", ["Sessions"]), ("#/tenants", ["Tenants"]), ("#/events", ["Events"]),
                               (f"#/sessions/{big['id']}", ["Token placement", "Attention mass", "Step time"]), (f"#/workers/{worker}", ["Facts", "KV memory", "Limits", "Events"])):
            page = self.ready(view)
            page.wait(f"[...document.querySelectorAll('main h2')].filter((e) => e.checkVisibility()).length === {len(headings)}")
            self.assertEqual(page.run("[...document.querySelectorAll('h2')].filter((e) => e.checkVisibility()).map((e) => e.textContent)"), summary + headings)
            self.assertEqual(page.run(UNNAMED), [], view)
            self.well(page)

    def test_numbers_do_not_contradict_each_other(self):
        """One count of errors; workers and copies are two columns."""
        page = self.ready("#/sessions")
        self.assertEqual(page.run("[...document.querySelectorAll('.tile:last-child > div')].map((e) => e.textContent)"), ["4", "last hour; 31 retried"])
        heads = page.run("[...document.querySelectorAll('.grid-head > *')].map((e) => e.textContent)")
        self.assertEqual(heads, ["Session", "State", "Tokens", "K and V", "Chunks", "Workers", "Copies", "Steps", "Idle"])
        page.wait("document.querySelector('.grid-row:not([hidden]) :nth-child(7)').textContent === '2'")
        self.assertNotIn("×", page.run("document.querySelector('.grid-view').textContent"))

    def test_last_hour(self):
        page = self.ready()
        self.assertEqual(page.wait("document.querySelectorAll('.chart').length"), 6)
        self.assertEqual(page.run("document.querySelectorAll('.chart svg')[3].getAttribute('aria-label')"), "Failed steps in the last hour: 0 to 4")
        self.assertEqual(page.run("[...document.querySelectorAll('.chart path')].filter((e) => !/^M/.test(e.getAttribute('d'))).length"), 0)
        self.assertEqual(page.run("document.querySelectorAll('.chart')[0].closest('section').querySelectorAll('tbody tr').length"), 12)

    def test_tenants(self):
        page = self.ready("#/tenants")
        page.wait("document.querySelectorAll('.cards tbody tr').length === 5")
        self.assertRegex(page.run("document.querySelectorAll('.cards tbody tr')[1].textContent"), r"^research[0-9,]+ of 4,000.* of 1.00 TiB")
        self.assertEqual(page.run("document.querySelectorAll('.cards tbody tr')[0].querySelectorAll('.bar').length"), 0)  # no limit
        page.run("document.querySelector('.panel input[type=search]').focus()")
        page.type("SEARCH-")
        page.wait("document.querySelectorAll('.cards tbody tr').length === 2")
        self.assertIn("2 of 5", page.run("document.querySelector('.panel header').textContent"))
        self.well(page)

    def test_events(self):
        """Days, kinds and a search; repeats are one entry, unless they are asked for."""
        page = self.ready("#/events")
        shown = "document.querySelectorAll('.events .event').length"
        page.wait(f"{shown} === 13")  # 3 kinds about the same worker each, and 10 sessions
        self.assertEqual(page.run("document.querySelectorAll('.events .day').length"), 2)
        first = page.run("document.querySelector('.events .event').textContent")
        self.assertRegex(first, r"10 times since \d+ \w+, \d\d:\d\d:\d\d")
        page.run("document.querySelector('[aria-label=Kind]').value = 'worker-slow'; document.querySelector('[aria-label=Kind]').dispatchEvent(new Event('change'))")
        page.wait(f"{shown} === 1")
        self.assertEqual(page.run("location.hash"), "#/events?kind=worker-slow")
        page.reload()
        page.wait(f"{shown} === 1")
        page.run("document.querySelector('[type=checkbox]').click()")
        page.wait(f"{shown} === 10")
        page.run("document.querySelector('input[type=search]').focus()")
        page.type("no such words")
        page.wait("[...document.querySelectorAll('.empty')].some((e) => e.textContent === 'No matching events.' && e.checkVisibility())")
        self.well(page)
        page = self.ready("#/workers/gpu-node-a100-rack011-worker-0")
        page.wait(f"{shown} === 1")  # its own, and no other's
        page = self.ready("#/workers/nobody")
        page.wait("/There is no worker with this name/.test(document.querySelector('main').innerText)")

    def test_one_worker(self):
        """A cluster of one: nothing is empty, cut or wrong."""
        server = serve(self.addCleanup, 1, 50)
        page = self.open(f"http://127.0.0.1:{server.server_port}/")
        page.wait("document.querySelectorAll('.tree .node').length === 1 && document.querySelectorAll('.fixed tbody tr').length === 1")
        self.assertEqual(page.run("document.querySelector('.tree .node .name').textContent"), "w000")
        self.well(page)


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
