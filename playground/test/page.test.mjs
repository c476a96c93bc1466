// The page in a browser: each of its functions, by mouse and by keyboard.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { gzipSync } from "node:zlib";
import { answered, choose, copied, open, start, type } from "./harness.mjs";

let server;
before(async () => (server = await start()));
after(() => server.stop());

const on = (name, run, options) => test(name, async () => {
  const page = await open(server, options);
  await run(page);
  assert.deepEqual(page.wrong, []);
  await page.context().close();
});

const verdict = async (page) => [await page.locator("#verdict").getAttribute("class"), await page.locator("#verdict").innerText()];

on("opens with an answer, and asks nobody but its own folder", async (page) => {
  const [kind, text] = await verdict(page);
  assert.match(kind, /captured/);
  assert.match(text, /go through Istio/);
  const loaded = page.requested.length;
  assert.deepEqual(page.requested.filter((u) => !u.startsWith(server.url) && !u.startsWith("data:")), []);
  await answered(page, () => type(page, "edit-pod", "kind: Pod\nmetadata: {name: x}\n"));
  await page.click("#tab-compare");
  await page.click("#take");
  await page.locator("#compared .outcome").waitFor();
  // Comparing takes a second thread, which is the same file.
  assert.deepEqual(page.requested.slice(loaded).filter((u) => u !== server.url + "worker.js"), []);
});

on("says why and what to do, in plain words", async (page) => {
  for (const [example, kind, said] of [
    ["A pod that no mesh knows of", /outside/, [/is not captured/, /no mesh has put its proxy into it/, /istio-injection=enabled/, /linkerd\.io\/inject/]],
    ["Settings that are wrong", /refused/, [/does not start/, /excludeInboundPorts="22,x"/, /10\.0\.0\.0\/33/]],
    ["IPv6 gets past the mesh", /leaky/, [/but not all of them/, /ipv6 bypasses the mesh/, /uncapturedFamily: drop/]],
    ["On the host's network", /outside/, [/uses the network of its node/, /hostNetwork: false/, /host-network/]],
    ["An init container sets the rules", /outside/, [/"istio-init" sets the rules itself/, /pilot\.cni\.enabled=true/]],
    ["Istio ambient", /captured/, [/Istio \(ambient\)/]],
    ["Consul", /captured/, [/Consul/]],
  ]) {
    await choose(page, example);
    const [is, text] = await verdict(page);
    assert.match(is, kind, example);
    for (const s of said) assert.match(text, s, example);
  }
});

on("takes a pod that is pasted, and says what is wrong with it", async (page) => {
  await answered(page, () => type(page, "edit-pod", "kind: Pod\nmetadata: {name: a, namespace: b}\nspec: {containers: [{name: linkerd-proxy}]}\n"));
  assert.match((await verdict(page))[1], /go through Linkerd[^]*b\/a/);
  await answered(page, () => type(page, "edit-pod", "kind: Pod\n  metadata: ["));
  assert.match((await verdict(page)).join(), /error[^]*not a pod that can be read[^]*line 2/);
  await answered(page, () => type(page, "edit-pod", "kind: Service\n"));
  assert.match((await verdict(page))[1], /it is a "Service"/);
  await answered(page, () => type(page, "edit-pod", "kind: Deployment\nmetadata: {name: a, namespace: b}\nspec: {template: {spec: {containers: [{name: app}]}}}\n"));
  assert.match((await verdict(page))[1], /is not captured[^]*rollout restart deployment\/a[^]*workload's template/);
  await answered(page, () => type(page, "edit-pod", '{"kind": "Pod", "metadata": {"name": "<img src=x onerror=alert(1)>"}}'));
  assert.match((await verdict(page))[1], /is no name/);
  assert.equal(await page.locator("img:not(.cm-widgetBuffer)").count(), 0);
  await type(page, "edit-pod", "");
  await page.getByText("Paste a pod, or choose an example").waitFor();
});

on("the namespace and the options count", async (page) => {
  await choose(page, "A pod that no mesh knows of");
  await page.click("#tab-options");
  assert.equal(await page.inputValue("[name=dialect]"), "*");
  await page.click("#tab-namespace");
  await answered(page, () => type(page, "edit-namespace", ""));
  assert.match((await verdict(page))[1], /namespace is not known\.[^]*Paste the namespace under Namespace/);
  await answered(page, () => type(page, "edit-namespace", "metadata: {name: shop, labels: {istio.io/dataplane-mode: ambient}}"));
  assert.match((await verdict(page))[1], /go through Istio \(ambient\)/);
  await page.click("#tab-options");
  await answered(page, () => page.fill("[name=exclude_namespaces]", "kube-system, shop"));
  assert.match((await verdict(page))[1], /excludes its namespace, shop/);
  await answered(page, () => page.fill("[name=exclude_namespaces]", ""));
  await answered(page, () => page.fill("[name=exclude_namespace_selector]", "a=(b"));
  assert.match((await verdict(page))[1], /option is wrong[^]*exclude_namespace_selector/);
  await answered(page, () => page.fill("[name=exclude_namespace_selector]", ""));
  await answered(page, () => page.selectOption("[name=dialect]", "linkerd"));
  assert.match((await verdict(page))[1], /of the mesh Istio \(ambient\), and the plugin is configured for Linkerd only/);
  await choose(page, "IPv6 gets past the mesh");
  await answered(page, () => page.selectOption("[name=uncaptured_family]", "drop"));
  assert.doesNotMatch((await verdict(page))[0], /leaky/);
  await answered(page, () => page.selectOption("[name=dialect]", "ambient"));
  assert.match((await verdict(page))[1], /proxy of its own/);
});

on("the settings of Istio ambient count, and are in the link", async (page) => {
  await choose(page, "Istio ambient");
  assert.match((await verdict(page))[0], /captured/);
  await page.click("#tab-options");
  await answered(page, () => page.fill("[name=ambient_enablement_selectors]", "- podSelector: {matchLabels: {mesh: please}}"));
  assert.match((await verdict(page))[0], /outside/);
  await answered(page, () => page.fill("[name=ambient_enablement_selectors]", "- podSelector: {matchLabels: {app: cart}}\n- podSelector:\n    matchLabels: {mesh: please}"));
  assert.match((await verdict(page))[0], /captured/);
  await answered(page, () => page.fill("[name=ambient_probe_ipv4]", "192.0.2.7"));
  await answered(page, () => page.fill("[name=ambient_probe_ipv6]", "2001:db8::7"));
  await page.click("#tab-rules");
  const rules = await page.locator("#rules").innerText();
  assert.match(rules, /-s 192\.0\.2\.7\/32 /);
  assert.match(rules, /-s 2001:db8::7\/128 /);
  await copied(page, "#share");
  const second = await open(server, { fragment: new URL(page.url()).hash });
  await second.click("#tab-options");
  assert.match(await second.inputValue("[name=ambient_enablement_selectors]"), /app: cart[^]*\n {4}matchLabels/);
  assert.equal(await second.inputValue("[name=ambient_probe_ipv4]"), "192.0.2.7");
  assert.equal(await second.inputValue("[name=ambient_probe_ipv6]"), "2001:db8::7");
  await second.context().close();
  for (const [name, value, said] of [
    ["ambient_enablement_selectors", "- podSelectors: {}", /option is wrong[^]*podSelectors: unknown key/],
    ["ambient_enablement_selectors", "- podSelector: [", /option is wrong[^]*enablement_selectors/],
    ["ambient_probe_ipv4", "192.0.2", /option is wrong[^]*probe_ipv4/],
  ]) {
    const right = await page.inputValue(`[name=${name}]`);
    await answered(page, () => page.fill(`[name=${name}]`, value));
    assert.match((await verdict(page))[1], said);
    await answered(page, () => page.fill(`[name=${name}]`, right));
  }
  await answered(page, () => page.fill("[name=ambient_enablement_selectors]", "[]"));
  assert.match((await verdict(page))[0], /outside/);
  await answered(page, () => page.fill("[name=ambient_enablement_selectors]", ""));
  assert.match((await verdict(page))[0], /captured/, "by the namespace's label again");
});

on("a namespace is filled in by its labels", async (page) => {
  await choose(page, "Istio ambient");
  await page.click("#tab-namespace");
  const fill = (name) => answered(page, () => page.getByRole("group", { name: "Fill in a namespace" }).getByRole("button", { name }).click());
  await fill("without labels");
  assert.match((await verdict(page))[0], /outside/);
  assert.match(await page.locator("#edit-namespace").innerText(), /name: "shop"/);
  await fill("in the ambient mesh");
  assert.match((await verdict(page))[1], /go through Istio \(ambient\)/);
  await fill("not known");
  assert.match((await verdict(page))[1], /namespace is not known\./);
});

on("a connection of the matrix is followed through the rules", async (page) => {
  await page.locator("#out-matrix button", { hasText: "port 15006" }).first().click();
  await page.locator("#way .outcome.mesh").waitFor();
  const path = (await page.locator("#way .why-step small").innerText()).replace(/[()]/g, "").split(" → ");
  assert.ok(path.length > 2);
  assert.deepEqual(await page.locator(".chart .rule.on").evaluateAll((all) => all.map((g) => g.dataset.rule)), path);
  await page.fill("#connection [name=dst]", "127.0.0.1");
  await page.selectOption("#connection [name=from]", "app");
  await page.locator("#way .outcome.direct").waitFor();
  await page.selectOption("#connection [name=from]", "in");
  await page.fill("#connection [name=src]", "10.9.9.9");
  await page.fill("#connection [name=dst]", "10.244.1.5");
  await page.fill("#connection [name=port]", "8443");
  await page.locator("#way", { hasText: "10.9.9.9" }).locator(".outcome.mesh").waitFor();
  const near = await page.locator(".chart .chain").count();
  await page.getByLabel(/all \d+ chains/).check();
  assert.ok((await page.locator(".chart .chain").count()) > near);
  await page.locator("#way .steps button").nth(1).click();
  assert.equal(await page.locator("#way .steps button").nth(1).getAttribute("aria-pressed"), "true");
  await page.fill("#connection [name=dst]", "nowhere");
  await page.getByText('"nowhere" is not an address').waitFor();
});

on("both families are in the matrix", async (page) => {
  await page.locator("#out-matrix input[value=ipv6]").check();
  await page.locator("#out-matrix", { hasText: "[2001:db8::10]:443" }).waitFor();
  await page.locator("#out-matrix .mesh").first().click();
  await page.locator('.chart[aria-label*="ipv6"]').waitFor();
});

on("rules, and where settings come from", async (page) => {
  await choose(page, "traffic.sidecar.istio.io/excludeInboundPorts");
  await page.click("#tab-rules");
  assert.match(await page.locator("#rules").innerText(), /-A ISTIO_INBOUND .*--dports 9090,/);
  await page.selectOption("#format", "nft");
  assert.match(await page.locator("#rules").innerText(), /table inet/);
  await copied(page, "#copy-rules");
  assert.match(await page.evaluate(() => navigator.clipboard.readText()), /table inet/);
  await page.click("#tab-settings");
  const given = page.locator("#out-settings tr.given", { hasText: "excludeInboundPorts" });
  assert.match(await given.innerText(), /9090[^]*annotation traffic\.sidecar\.istio\.io\/excludeInboundPorts="9090"/);
});

on("a second pod, or saved rules, beside it", async (page) => {
  await page.click("#tab-rules");
  const rules = (await page.locator("#rules").innerText()).split("# ipv6")[0];
  await page.click("#tab-compare");
  await page.click("#take");
  await page.locator("#compared", { hasText: "No difference" }).waitFor();
  await choose(page, "traffic.sidecar.istio.io/excludeInboundPorts");
  await page.locator("#compared .group", { hasText: "inbound port is excluded" }).waitFor();
  await page.selectOption("#with", "saved");
  await type(page, "edit-saved", rules);
  await page.locator("#compared .group", { hasText: "captured beside, not here" }).first().waitFor();
  await type(page, "edit-saved", "*nat\n:OUTPUT ACCEPT [0:0]\n-A OUTPUT -m string --string x --algo bm -j DROP\nCOMMIT\n");
  await page.locator("#compared", { hasText: "cannot be judged" }).waitFor();
});

on("the link has everything", async (page) => {
  await choose(page, "Linkerd");
  await page.click("#tab-options");
  await answered(page, () => page.fill("[name=exclude_namespaces]", "other"));
  await page.locator("#out-matrix .mesh").first().click();
  await page.fill("#connection [name=port]", "8444");
  await page.click("#tab-compare");
  await page.click("#take");
  await copied(page, "#share");
  const link = await page.evaluate(() => navigator.clipboard.readText());
  assert.equal(link, page.url());
  assert.ok(link.length < 2000, `${link.length} characters`);
  const second = await open(server, { fragment: new URL(link).hash });
  await second.locator("#compared", { hasText: "No difference" }).waitFor();
  assert.match((await verdict(second))[1], /Linkerd/);
  await second.click("#tab-trace");
  assert.equal(await second.inputValue("#connection [name=port]"), "8444");
  await second.click("#tab-options");
  assert.equal(await second.inputValue("[name=exclude_namespaces]"), "other");
  assert.equal(await second.inputValue("[name=dialect]"), "linkerd");
  await second.context().close();
});

const documentation = readFileSync(new URL("../../docs/dialects/istio.md", import.meta.url), "utf8");
on("a link of the documentation opens its example", async (page) => {
  assert.match((await verdict(page)).join(), /captured[^]*Istio/);
  assert.match(await page.locator("#edit-pod").innerText(), /excludeOutboundPorts: "3306"/);
  await page.click("#tab-settings");
  assert.match(await page.locator("#out-settings tr.given", { hasText: "excludeOutboundPorts" }).innerText(), /3306/);
}, { fragment: /^\[\S+excludeOutboundPorts\]: [^#]+(#\S+)$/m.exec(documentation)[1] });

on("a link that cannot be read says so", async (page) => {
  assert.match((await verdict(page)).join(), /error[^]*The link cannot be read/);
}, { fragment: "#1=AAAA" });

on("what is too big for a link has none", async (page) => {
  await page.click("#tab-compare");
  await page.selectOption("#with", "saved");
  await type(page, "edit-saved", "# " + "x".repeat(1 << 20));
  await page.click("#share");
  await page.locator("#share", { hasText: "Too big for a link" }).waitFor();
  assert.equal(page.url(), server.url);
});

// A module with an import that nobody has, so that it compiles and does not start.
const stuck = gzipSync(Uint8Array.of(0, 0x61, 0x73, 0x6d, 1, 0, 0, 0, 1, 4, 1, 0x60, 0, 0, 2, 7, 1, 1, 0x78, 1, 0x79, 0, 0));
for (const [what, instead, said] of [
  ["a missing engine", { "engine.bin": { status: 404 } }, /engine cannot be loaded: engine\.bin: 404/],
  ["a missing thread", { "worker.js": { status: 404 } }, /engine cannot be started/],
  ["an engine that does not start", { "engine.bin": { body: stuck } }, /engine cannot be started/],
  ["missing examples", { "examples.json": { status: 404 } }, /examples cannot be loaded: examples\.json: 404/],
])
  test(`${what} is said`, async () => {
    const page = await open(server, { instead });
    const [kind, text] = await verdict(page);
    assert.match(kind, /error/);
    assert.match(text, said);
    assert.ok(page.requested.filter((u) => u === server.url + "worker.js").length < 4, "it is tried for ever");
    await page.context().close();
  });

on("the keyboard does it all", async (page) => {
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.className), "skip");
  await page.locator("#edit-pod .cm-content").focus();
  await page.keyboard.press("Tab"); // leaves the editor
  assert.equal(await page.evaluate(() => document.activeElement.tagName), "SUMMARY");
  await page.keyboard.press("Enter");
  await page.getByText("no container is named linkerd-proxy").waitFor();
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.id), "tab-matrix");
  for (const next of ["trace", "rules", "settings", "compare", "matrix"]) {
    await page.keyboard.press("ArrowRight");
    assert.equal(await page.evaluate(() => document.activeElement.id), "tab-" + next);
    assert.ok(await page.locator("#out-" + next).isVisible());
  }
  await page.keyboard.press("End");
  assert.ok(await page.locator("#out-compare").isVisible());
  await page.keyboard.press("Home");
  await page.keyboard.press("Tab");
  await page.keyboard.press("Tab");
  await page.keyboard.press("Enter");
  await page.locator("#way .outcome").waitFor();
  assert.equal(await page.evaluate(() => document.activeElement.id), "tab-trace");
});
