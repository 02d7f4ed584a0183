// Failed loads of parts of the browser's module: the page shows them, retries or offers another try, and loses nothing.
// Data that changes during the load of a page: the browser takes over the HTML with the data of this HTML.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { inOrg, launchBrowser, openPage, settled, signUp, startDemo } from './harness.mjs';

const PARTS = '**/pkg/**/split_*.wasm';

let demo, browser, person;
before(async () => {
  demo = await startDemo();
  browser = await launchBrowser();
  person = await signUp(demo.url);
});
after(async () => {
  await browser?.close();
  await demo?.stop();
});

/** The faults of a page without those of a failed load. */
const unasked = (faults) => faults.filter((fault) => !/Failed to load resource/.test(fault));

test('a page shows the failed load of its part, and is hydrated after the load', async () => {
  const { page, faults, close } = await openPage(browser, demo.url, { headers: person.headers });
  let tries = 0;
  let broken = true;
  await page.route(PARTS, (route) => {
    tries += 1;
    return broken ? route.abort('connectionreset') : route.continue();
  });
  await page.goto(inOrg(person.slug, '/team'));
  const line = page.getByRole('status').getByText(/did not load/);
  await line.waitFor();
  const button = page.getByRole('button', { name: 'Send invitation' });
  assert.ok(await button.isDisabled());
  const before = tries;
  broken = false;
  await button.and(page.locator(':enabled')).waitFor();
  assert.ok(tries > before);
  await line.waitFor({ state: 'detached' });
  assert.deepEqual(unasked(faults), []);
  await close();
});

test('a hydrated page shows the failed load of the next part, and navigates on another try', async () => {
  const { page, faults, close } = await openPage(browser, demo.url, { headers: person.headers });
  await page.goto(inOrg(person.slug));
  await settled(page);
  await page.getByRole('button', { name: 'Sign out' }).and(page.locator(':enabled')).first().waitFor();
  await page.route(PARTS, (route) => route.abort('connectionreset'));
  const rail = page.getByRole('navigation', { name: 'Main' });
  await rail.getByRole('link', { name: 'Team', exact: true }).click();
  await page.getByRole('alert').getByText('This page did not load').waitFor();
  await page.unroute(PARTS);
  await rail.getByRole('link', { name: 'Home', exact: true }).click();
  await page.getByRole('heading', { level: 1, name: 'Home' }).waitFor();
  await rail.getByRole('link', { name: 'Team', exact: true }).click();
  await page.getByRole('heading', { level: 1, name: 'Team' }).waitFor();
  assert.deepEqual(unasked(faults), []);
  await close();
});

test('a page that is left while it loads ends without a fault', async () => {
  const { page, faults, close } = await openPage(browser, demo.url, { headers: person.headers });
  const held = [];
  await page.route(PARTS, (route) => held.push(route));
  await page.goto(inOrg(person.slug, '/team'));
  await page.waitForFunction(() => performance.getEntriesByType('resource').some((entry) => entry.name.endsWith('__wasm_split.js')));
  await page.unroute(PARTS);
  await page.goto(inOrg(person.slug, '/team'));
  await page.getByRole('button', { name: 'Send invitation' }).and(page.locator(':enabled')).waitFor();
  assert.deepEqual(faults, []);
  await close();
});

test('a page is hydrated while its data changes', async () => {
  const { page, faults, close } = await openPage(browser, demo.url, { headers: person.headers });
  let changing = true;
  // Each change adds or removes a row of the page.
  const change = async (name) => {
    const path = `/orgs/${person.org}/secrets/${name}`;
    while (changing) {
      await person.api('PUT', path, { value: 'lantern drizzle' });
      await person.api('DELETE', path);
    }
  };
  const load = async () => {
    try {
      for (let loads = 0; loads < 12; loads += 1) {
        await page.goto(inOrg(person.slug, '/secrets'));
        await page.getByRole('button', { name: 'Create secret' }).and(page.locator(':enabled')).waitFor();
        // The data in the HTML: of more than one request, the browser could get the data of another one.
        const lists = await page.evaluate(() => globalThis.__RESOLVED_RESOURCES.filter((text) => text.includes('"secrets":[')));
        assert.equal(lists.length, 1, lists.join('\n'));
      }
    } finally {
      changing = false;
    }
  };
  await Promise.all([load(), ...['first', 'second', 'third'].map(change)]);
  assert.deepEqual(faults, []);
  await close();
});
