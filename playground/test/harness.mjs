// A file server for dist/, below a folder as on GitHub Pages, and Debian's Chromium.
import assert from "node:assert/strict";
import { existsSync, readFileSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import path from "node:path";
import { chromium } from "playwright-core";

export const dist = path.join(import.meta.dirname, "..", "dist");
const types = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".json": "application/json" };

export async function start() {
  const server = createServer((request, response) => {
    const name = request.url.replace(/^\/meshcni\//, "").replace(/^$/, "index.html");
    const file = path.join(dist, path.normalize("/" + name));
    if (!request.url.startsWith("/meshcni/") || !existsSync(file)) {
      response.writeHead(404).end();
      return;
    }
    response.writeHead(200, { "content-type": types[path.extname(file)] ?? "application/octet-stream" }).end(readFileSync(file));
  }).listen(0, "127.0.0.1");
  await new Promise((ready) => server.once("listening", ready));
  // Root, as CI has it, cannot use Chromium's sandbox. The pages are our own.
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox"], timeout: 0 });
  return {
    browser,
    url: `http://127.0.0.1:${server.address().port}/meshcni/`,
    async stop() {
      await browser.close();
      server.close();
    },
  };
}

/** A page with a result. It has what it asked for, and what went wrong in it. Of its files, it gets what instead has for them. */
export async function open({ browser, url }, { fragment = "", instead = {}, ...options } = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, permissions: ["clipboard-read", "clipboard-write"], ...options });
  context.setDefaultTimeout(0); // the test runner's own limit counts
  const page = await context.newPage();
  page.requested = [];
  page.wrong = [];
  page.on("request", (r) => page.requested.push(r.url()));
  page.on("pageerror", (e) => page.wrong.push(String(e)));
  page.on("console", (m) => m.type() === "error" && page.wrong.push(m.text()));
  for (const [name, response] of Object.entries(instead)) await page.route(url + name, (route) => route.fulfill(response));
  await page.goto(url + fragment);
  await page.locator(".verdict h2").waitFor();
  return page;
}

export const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

/** Is the page, in which axe is, accessible, and no wider than the screen? */
export async function audit(page, name) {
  const found = await page.evaluate(async () => (await axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"] })).violations);
  assert.deepEqual(found.map((v) => `${v.id}: ${v.nodes.map((n) => n.target.join(" ") + " " + (n.any[0]?.message ?? "")).join("; ")}`), [], name);
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  assert.equal(wide, 0, `${name}: the page is wider than the screen`);
  if (process.env.SCREENSHOTS) await page.screenshot({ path: path.join(process.env.SCREENSHOTS, name.replaceAll(/\W+/g, "-") + ".png"), fullPage: true });
}

/** Clicks a button that copies, and waits until it says so, in the page itself: it says so for a moment only. */
export const copied = (page, button) =>
  Promise.all([page.waitForFunction((b) => document.querySelector(b).textContent === "Copied", button), page.click(button)]);

/** Does something that asks the engine, and waits for the answer to that: one to an earlier question may come first. */
export async function answered(page, act) {
  const before = await page.evaluate(() => Number(document.body.dataset.asked ?? 0));
  await act();
  await page.waitForFunction((n) => Number(document.body.dataset.asked ?? 0) > n && document.body.dataset.answered === document.body.dataset.asked, before);
}

export const choose = (page, label) => answered(page, () => page.selectOption("#example", { label }));

/** Replaces the text of an editor, by the keyboard. */
export async function type(page, id, text) {
  await page.locator(`#${id} .cm-content`).click();
  await page.keyboard.press("Control+a");
  await page.keyboard.insertText(text);
}
