// The whole way of a job in the browser: sign up, launch by the form, watch it live, pay exactly
// for what it used, stop another one, and leave the boards as they were.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import {
  api, bearer, boardsFree, chooseOffering, ENDED, inOrg, jobIn, launchBrowser, moneyText, openPage, ROOT, settled, signIn,
  someone, startDemo, waitFor,
} from './harness.mjs';

const SLICE = 'h100-80gb.1g.10gb';

let demo, browser, operator, view, page, call, org, slug;
const person = someone();

before(async () => {
  demo = await startDemo();
  browser = await launchBrowser();
  operator = bearer(demo.url, demo.operator.token);
  view = await openPage(browser, demo.url, { viewport: { width: 1440, height: 900 } });
  page = view.page;
});
after(async () => {
  await browser?.close();
  await demo?.stop();
});

const awake = (button) => button.and(page.locator(':enabled')).waitFor();
const textbox = (name) => page.getByRole('textbox', { name, exact: true });
const badge = (state) => page.locator('.page__head').getByText(state).first();
const job = () => /job_[0-9a-z]+/.exec(page.url())[0];

/** Launches the digits through the form and ends on the job's page. */
async function launch(name, command) {
  await page.goto(inOrg(slug, '/launch'));
  const button = page.getByRole('button', { name: 'Launch job' });
  await awake(button);
  await textbox('Name').fill(name);
  await textbox('Command').fill(command);
  for (const [at, file] of ['train.py', 'digits.csv'].entries()) {
    await page.getByRole('button', { name: 'Add file' }).click();
    await page.getByRole('textbox', { name: 'File path' }).nth(at).fill(file);
    const text = readFileSync(join(ROOT, 'examples/digits', file), 'utf8');
    const box = page.getByRole('textbox', { name: 'File content' }).nth(at);
    if (text.length < 20_000) await box.fill(text);
    // Chromium takes half a minute to insert a quarter of a megabyte as typing does.
    else await box.evaluate((element, value) => {
      element.value = value;
      element.dispatchEvent(new Event('input', { bubbles: true }));
    }, text);
  }
  await chooseOffering(page, 'h100-80gb.1g.10gb');
  await button.click();
  await page.waitForURL(/\/jobs\/job_/);
  await page.getByRole('heading', { level: 1, name }).waitFor();
}

test('a new person signs up through the form and is given credit', async () => {
  await page.goto('/sign-up');
  const button = page.getByRole('button', { name: /create (account|organization)/i });
  await awake(button);
  await textbox('Your name').fill(person.name);
  await textbox('E-mail').fill(person.email);
  await textbox('Organization').fill(person.organization);
  await page.getByLabel('Password', { exact: true }).fill(person.password);
  await button.click();
  await page.waitForURL((url) => !url.pathname.startsWith('/sign'));

  call = api(demo.url, await signIn(demo.url, person));
  ({ id: org, slug } = (await call('GET', '/me')).memberships[0].org);
  const balance = await operator('POST', `/operator/orgs/${org}/credits`, { amount_micros: 20_000_000, memo: 'Welcome' });
  assert.equal(balance.available_micros, 20_000_000);
});

test('a job is launched by the form and seen live to its end', async () => {
  await launch('read-digits', 'python3 train.py --epochs 40');
  // Gone if anything below loaded the page anew.
  await page.evaluate(() => (window.sameDocument = true));

  const log = page.getByRole('log').first();
  const lines = async () => ((await log.innerText()).match(/epoch \d+\/40/g) ?? []).length;
  const some = await waitFor('lines of the log', lines);
  await waitFor('more lines of the log', async () => (await lines()) > some);

  const readings = () => page.evaluate(() => JSON.stringify([
    [...document.querySelectorAll('.chart__values')].map((e) => e.textContent),
    [...document.querySelectorAll('.chart canvas')].map((e) => e.toDataURL()),
  ]));
  await page.locator('.chart canvas').first().waitFor();
  const drawn = await readings();
  await waitFor('the charts to move', async () => (await readings()) !== drawn);

  await badge(/succeeded/i).waitFor({ timeout: 60_000 });
  await waitFor('the last line', async () => (await log.innerText()).includes('after 40 epochs'));
  await page.getByText(/^Billed .*\. Process alive for .*; devices responded for .*, did not respond for 0 s\.$/).waitFor();
  assert.equal(await page.evaluate(() => window.sameDocument), true);
});

test('its charts are there when its page is opened after the end', async () => {
  await page.reload();
  await settled(page);
  await page.getByText('finished, log complete').first().waitFor();
  await page.locator('.chart canvas').first().waitFor();
  const values = page.locator('.chart__values');
  await waitFor('the last values', async () => /\d W/.test((await values.allInnerTexts()).join(' ')));
});

test('it is charged to the millisecond, and the ledger shows it', async () => {
  const done = await jobIn(call, org, job(), ['succeeded']);
  const charge = (BigInt(done.nano_per_second) * BigInt(done.metered_ms)) / 1_000_000n;
  assert.ok(done.metered_ms > 0);
  assert.equal(BigInt(done.cost_micros), charge);
  const { items } = await call('GET', `/orgs/${org}/transfers?limit=200`);
  const posted = items.filter((t) => t.kind === 'usage' && t.source_id === done.id);
  assert.equal(posted.reduce((sum, t) => sum + BigInt(t.amount_micros), 0n), -charge);
  const balance = await call('GET', `/orgs/${org}/balance`);
  assert.equal(BigInt(balance.posted_micros), 20_000_000n - charge);
  assert.equal(balance.held_micros, 0);

  await page.goto(inOrg(slug, '/billing'));
  await settled(page);
  for (const { amount_micros: micros } of posted) {
    const row = page.getByRole('row').filter({ hasText: done.id }).filter({ hasText: moneyText(BigInt(micros)) });
    await row.first().waitFor();
  }
});

test('a job is stopped in the dialog', async () => {
  await launch('too-long', 'python3 train.py --epochs 9000');
  await badge(/running/i).waitFor();
  await page.getByRole('button', { name: 'Stop job' }).click();
  const dialog = page.getByRole('dialog', { name: 'Stop too-long?' });
  await dialog.getByRole('button', { name: 'Keep running' }).click();
  await dialog.waitFor({ state: 'hidden' });
  await page.getByRole('button', { name: 'Stop job' }).click();
  await dialog.getByRole('button', { name: 'Stop job' }).click();
  await badge(/cancelled/i).waitFor({ timeout: 30_000 });
  const stopped = await jobIn(call, org, job(), ENDED);
  assert.equal(stopped.state, 'cancelled');
  const charge = (BigInt(stopped.nano_per_second) * BigInt(stopped.metered_ms)) / 1_000_000n;
  assert.equal(BigInt(stopped.cost_micros), charge);
});

test('what a job leaves is on its page, to be downloaded', async () => {
  const script = 'mkdir out; echo kept > out/result.txt';
  const body = { name: 'leaves-a-file', offering: SLICE, script, artifacts: ['out/**'], max_duration_s: 60 };
  const made = await call('POST', `/orgs/${org}/jobs`, body);
  await page.goto(inOrg(slug, `/jobs/${made.id}`));
  // It comes when the job is over, without the page being asked for again.
  const link = page.getByRole('link', { name: 'Download out/result.txt' });
  await link.waitFor({ timeout: 60_000 });
  const [download] = await Promise.all([page.waitForEvent('download'), link.click()]);
  assert.equal(download.suggestedFilename(), 'result.txt');
  assert.equal(readFileSync(await download.path(), 'utf8'), 'kept\n');
  await jobIn(call, org, made.id, ['succeeded']);
});

test('its slices are free again, for the portal and on the map', async () => {
  await boardsFree(operator);
  const { items } = await call('GET', '/offerings');
  const offering = items.find((o) => o.slug === SLICE);
  assert.equal(offering.available, offering.capacity);
  await page.goto(inOrg(slug, '/cluster'));
  await settled(page);
  await page.locator('.boards .board').first().waitFor();
  const used = page.locator('.boards .board:is([class*=" o"], [class*=" x"], [class*=" q"])');
  await waitFor('a map without used slices', async () => (await used.count()) === 0);
});

test('nothing went wrong in the browser on the way', () => assert.deepEqual(view.faults, []));
