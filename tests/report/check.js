// node check.js BROWSER FILE...: opens each page offline, wide and light, narrow and dark, and prints what a checker says.
"use strict";
const fs = require("fs");
const { chromium } = require("playwright-core");

const SWITCHES = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync"];

async function look(browser, file, width, colorScheme, axe) {
  const context = await browser.newContext({ viewport: { width, height: 900 }, colorScheme, offline: true });
  const page = await context.newPage();
  const said = [], asked = [];
  page.on("console", (message) => said.push(message.text()));
  page.on("pageerror", (error) => said.push(String(error)));
  page.on("dialog", (dialog) => { said.push("dialog"); dialog.dismiss(); });
  page.on("request", (request) => asked.push(request.url()));
  await page.goto("file://" + file, { waitUntil: "load" });
  const overflow = () => page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  const closed = await overflow();
  const copied = await page.evaluate(() => {
    const button = document.querySelector("button.copy");
    if (button) button.click();
    return new Promise((done) => setTimeout(() => done(document.getElementById("said").textContent), 300));
  });
  const timing = await page.evaluate(() => performance.getEntriesByType("navigation")[0].duration);
  await page.evaluate(() => document.querySelectorAll("details").forEach((each) => { each.open = true; }));
  const open = await overflow();
  await page.evaluate(axe);
  const found = await page.evaluate(() => globalThis.axe.run());
  await context.close();
  return {
    file, width, colorScheme, said, asked: asked.filter((url) => !url.startsWith("data:")), overflow: Math.max(closed, open),
    copied, milliseconds: timing,
    violations: found.violations.map((each) => `${each.impact} ${each.id}: ${each.nodes[0].html.slice(0, 200)}`),
  };
}

(async () => {
  const [executablePath, ...files] = process.argv.slice(2);
  const axe = fs.readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
  const browser = await chromium.launch({ executablePath, args: SWITCHES });
  const results = [];
  for (const file of files)
    for (const [width, scheme] of [[1280, "light"], [375, "dark"]]) results.push(await look(browser, file, width, scheme, axe));
  await browser.close();
  console.log(JSON.stringify(results));
})();
