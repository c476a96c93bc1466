// The page that `kubectl meshcni migrate --html` writes, as the test of that command has it: accessible in light and dark, wide and
// narrow, and nothing is asked for.
import assert from "node:assert/strict";
import path from "node:path";
import { after, before, test } from "node:test";
import { pathToFileURL } from "node:url";
import { audit, axe, start } from "./harness.mjs";

const report = pathToFileURL(path.join(import.meta.dirname, "../../migrate/testdata/migrate.html")).href;
let server;
before(async () => (server = await start()));
after(() => server.stop());

/** The report, with what was asked for and what went wrong. */
async function open(options) {
  const context = await server.browser.newContext(options);
  const page = await context.newPage();
  page.requested = [];
  page.wrong = [];
  page.on("request", (r) => page.requested.push(r.url()));
  page.on("pageerror", (e) => page.wrong.push(String(e)));
  page.on("console", (m) => m.type() === "error" && page.wrong.push(m.text()));
  await page.goto(report);
  return page;
}

const background = (page) => page.evaluate(() => getComputedStyle(document.body).backgroundColor);

for (const colorScheme of ["light", "dark"])
  for (const width of [1360, 360])
    test(`report, ${colorScheme}, ${width} pixels`, async () => {
      const page = await open({ colorScheme, viewport: { width, height: 900 }, bypassCSP: true });
      assert.equal(await background(page), colorScheme === "dark" ? "rgb(20, 24, 29)" : "rgb(255, 255, 255)");
      await page.addScriptTag({ content: axe });
      await audit(page, `report ${colorScheme} ${width}`);
      for (const summary of await page.locator("summary").all()) await summary.click();
      assert.equal(await page.locator("details:not([open])").count(), 0);
      await audit(page, `report ${colorScheme} ${width} opened`);
      await page.context().close();
    });

test("no request leaves the report, and its own policy stops none that it needs", async () => {
  const page = await open({});
  for (const summary of await page.locator("summary").all()) await summary.click();
  await page.locator("text=have rules of two programs").first().waitFor();
  assert.deepEqual(page.requested, [report]);
  assert.deepEqual(page.wrong, []);
  await page.context().close();
});
