// How the page looks: accessible by axe's rules for WCAG 2.1 AA, in light and dark, wide and narrow. With SCREENSHOTS=DIR it
// leaves pictures, to be looked at.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { audit, axe, choose, open, start } from "./harness.mjs";

let server;
before(async () => (server = await start()));
after(() => server.stop());

for (const colorScheme of ["light", "dark"])
  for (const width of [1360, 360])
    test(`${colorScheme}, ${width} pixels`, async () => {
      const page = await open(server, { colorScheme, viewport: { width, height: 900 }, bypassCSP: true, reducedMotion: "reduce" });
      await page.addScriptTag({ content: axe });
      assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), colorScheme);
      const about = (what) => `${colorScheme} ${width} ${what}`;
      await audit(page, about("matrix"));
      for (const tab of ["options", "namespace", "pod"]) {
        await page.click("#tab-" + tab);
        if (tab !== "pod") await audit(page, about(tab));
      }
      for (const tab of ["trace", "rules", "settings", "compare"]) {
        await page.click("#tab-" + tab);
        if (tab === "trace") await page.locator("#way .outcome").waitFor();
        await audit(page, about(tab));
      }
      for (const example of ["A pod that no mesh knows of", "Settings that are wrong", "IPv6 gets past the mesh"]) {
        await choose(page, example);
        await audit(page, about(example));
      }
      await page.context().close();
    });

test("the theme is the visitor's, and is kept", async () => {
  const page = await open(server, { colorScheme: "light" });
  await page.click("#theme");
  assert.equal(await page.getAttribute("#theme", "aria-pressed"), "true");
  await page.reload();
  await page.locator(".verdict h2").waitFor();
  assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), "dark");
  await page.context().close();
});
