// How long the page takes: from its address to the first answer, and from a keystroke to the next. It asserts nothing.
import { open, start } from "./harness.mjs";

const server = await start();
const median = (all) => all.sort((a, b) => a - b)[Math.floor(all.length / 2)].toFixed(0);
const opening = [];
const typing = [];
for (let i = 0; i < 5; i++) {
  const page = await open(server);
  opening.push(await page.evaluate(() => performance.getEntriesByName("first answer")[0].startTime));
  for (let key = 0; key < 20; key++)
    typing.push(await page.evaluate(async () => {
      const answers = () => Number(document.body.dataset.answered);
      const before = answers();
      document.querySelector("#edit-pod .cm-content").focus();
      const from = performance.now();
      document.execCommand("insertText", false, " ");
      while (answers() === before) await new Promise(requestAnimationFrame);
      return performance.now() - from;
    }));
  await page.context().close();
}
console.log(`first answer after opening: ${median(opening)} ms; after a keystroke: ${median(typing)} ms (medians)`);
await server.stop();
