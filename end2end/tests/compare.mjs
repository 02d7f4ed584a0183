// The comparison of jobs: from the list and from a job's page, with its table, charts and CSV at both widths. And the
// saved filters of the lists of jobs.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { axeFindings } from './checks.mjs';
import {
  bearer, boardsFree, inOrg, jobIn, launchBrowser, openPage, settled, signIn, signUp, startDemo, waitFor,
} from './harness.mjs';

const SLICE = 'h100-80gb.1g.10gb';
const SIZES = [{ width: 1440, height: 900 }, { width: 390, height: 844 }];
const UNKNOWN = 'job_00000000000000000000000000';

let demo, browser, operator, person, view, page, first, second;

const compared = (...jobs) => inOrg(person.slug, `/jobs/compare?${jobs.map((job) => `job=${job}`).join('&')}`);
const region = (where = page) => where.getByRole('region', { name: 'Comparison, scrolls sideways' });
const row = (name, where = page) =>
  region(where).getByRole('row').filter({ has: where.getByRole('rowheader', { name, exact: true }) });
const cells = (name, where = page) => row(name, where).getByRole('cell').allInnerTexts();
const button = (name, where = page) => where.getByRole('button', { name, exact: true });
const isFocused = (locator) => locator.evaluate((element) => element === document.activeElement);
const awake = (what) => what.and(what.page().locator(':enabled')).waitFor();

before(async () => {
  demo = await startDemo();
  browser = await launchBrowser();
  operator = bearer(demo.url, demo.operator.token);
  person = await signUp(demo.url, 'Twinquay');
  await operator('POST', `/operator/orgs/${person.org}/credits`, { amount_micros: 20_000_000, memo: 'Welcome' });
  const submit = async (body) => {
    const made = await person.api('POST', `/orgs/${person.org}/jobs`, {
      offering: SLICE, max_duration_s: 300, command: ['sh', '-c', 'sleep 4'], labels: { project: 'twins' }, ...body,
    });
    await jobIn(person.api, person.org, made.id, ['succeeded']);
    return made.id;
  };
  first = await submit({ name: 'twin-a', env: { LR: '0.1', MODE: 'plain', HF_TOKEN: 'hf_one' } });
  second = await submit({ name: 'twin-b', env: { LR: '0.2', MODE: 'plain', HF_TOKEN: 'hf_two' } });
  for (const job of [first, second]) {
    await waitFor('the readings', async () =>
      (await person.api('GET', `/orgs/${person.org}/jobs/${job}/metrics`)).series.length > 0);
  }
  view = await openPage(browser, demo.url, { headers: person.headers, viewport: SIZES[0] });
  page = view.page;
  await page.addInitScript(() => {
    Clipboard.prototype.writeText = async (text) => {
      window.copied = text;
    };
  });
});
after(async () => {
  if (operator) await boardsFree(operator);
  await browser?.close();
  await demo?.stop();
});

test('jobs of the list are checked and compared', async () => {
  await page.goto(inOrg(person.slug, '/jobs'));
  await settled(page);
  assert.ok(await button('Compare jobs').isDisabled());
  await page.getByRole('checkbox', { name: `Compare twin-a (${first})`, exact: true }).check();
  await button('Compare 1 job').waitFor();
  assert.ok(await button('Compare 1 job').isDisabled());
  await page.getByRole('checkbox', { name: `Compare twin-b (${second})`, exact: true }).check();
  await button('Compare 2 jobs').click();
  await page.waitForURL((url) => url.search === `?job=${first}&job=${second}`);
  await page.getByRole('heading', { level: 1, name: 'Comparison of jobs' }).waitFor();
  await region().getByRole('link', { name: '1 twin-a' }).waitFor();
  assert.deepEqual(await cells('State'), ['succeeded', 'succeeded']);
  assert.deepEqual(await cells('LR (differs)'), ['0.1', '0.2']);
  assert.deepEqual(await cells('MODE'), ['plain', 'plain']);
  assert.deepEqual(await cells('HF_TOKEN (differs)'), ['hidden value A', 'hidden value B']);
  assert.ok(!(await page.content()).includes('hf_one'));
});

test('only differences are shown on request, and all rows are copied', async () => {
  await page.goto(compared(first, second));
  await settled(page);
  await page.getByRole('checkbox', { name: 'Only differences' }).check();
  await row('State').waitFor({ state: 'hidden' });
  await row('LR (differs)').waitFor();
  await page.getByRole('checkbox', { name: 'Only differences' }).uncheck();
  await row('State').waitFor();
  await button('Copy as CSV').click();
  await page.getByText('Copied.', { exact: true }).waitFor();
  const copied = await page.evaluate(() => window.copied);
  const lines = copied.split('\r\n');
  assert.equal(lines[0], '"Section","Value","Differs","twin-a","twin-b"');
  assert.equal(lines[1], `"","Job","yes","${first}","${second}"`);
  assert.ok(lines.includes('"Environment","LR","yes","0.1","0.2"'), copied);
  assert.ok(!copied.includes('hf_'), copied);
});

test('the keyboard walks over the charts, which have one crosshair', async () => {
  await page.goto(compared(first, second));
  await settled(page);
  await awake(button('Copy as CSV'));
  const chart = page.getByRole('slider', { name: /^Utilization/ });
  await chart.focus();
  await page.keyboard.press('Home');
  assert.match(await chart.getAttribute('aria-valuetext'), /^0 s: job 1 .+, job 2 .+/);
  assert.equal(await chart.getAttribute('aria-valuenow'), '1');
  await page.keyboard.press('ArrowRight');
  assert.equal(await chart.getAttribute('aria-valuenow'), '2');
  assert.equal(await page.getByRole('slider', { name: /^Memory/ }).getAttribute('aria-valuenow'), '2');
  assert.equal(await page.locator('.compare__at').count(), 3);
  const keys = page.getByRole('list', { name: 'Lines of the charts' }).getByRole('listitem');
  assert.deepEqual(await keys.allInnerTexts(), ['1 twin-a', '2 twin-b']);
});

test('an unknown job has an empty column, and nothing is too wide at both widths', async () => {
  for (const viewport of SIZES) {
    const { page: own, faults, close } = await openPage(browser, demo.url, { headers: person.headers, viewport });
    await own.goto(compared(UNKNOWN, first, second, first));
    await settled(own);
    await awake(button('Copy as CSV', own));
    await region(own).getByText('1 No access or deleted').waitFor();
    assert.deepEqual(await cells('State', own), ['–', 'succeeded', 'succeeded']);
    assert.deepEqual(await cells('MODE', own), ['–', 'plain', 'plain']);
    const wide = await own.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
    assert.ok(wide <= 0, `${wide} px too wide at ${viewport.width}`);
    if (viewport.width === 390) {
      const name = row('MODE', own).getByRole('rowheader');
      const before_ = (await name.boundingBox()).x;
      const moved = await region(own).evaluate((element) => {
        element.scrollLeft = 150;
        return element.scrollLeft;
      });
      assert.ok(moved > 0, 'the table scrolls');
      assert.ok(Math.abs((await name.boundingBox()).x - before_) < 1, 'the first column stays');
    }
    assert.deepEqual(await axeFindings(own), []);
    assert.deepEqual(faults, []);
    await close();
  }
});

test('fewer than two jobs are no comparison', async () => {
  for (const path of [compared(first), compared('nonsense', first, first), inOrg(person.slug, '/jobs/compare')]) {
    await page.goto(path);
    await settled(page);
    await page.getByText('A comparison needs two to six jobs.', { exact: false }).waitFor();
    assert.equal(await page.getByRole('link', { name: 'Open jobs' }).getAttribute('href'), inOrg(person.slug, '/jobs'));
  }
});

test('a job is compared from its page with jobs of its label', async () => {
  await page.goto(inOrg(person.slug, `/jobs/${second}`));
  await settled(page);
  await button('Compare with…').click();
  const dialog = page.getByRole('dialog', { name: 'Compare with' });
  const other = dialog.getByRole('checkbox', { name: /^twin-a, succeeded/ });
  await other.waitFor();
  assert.equal(await dialog.getByRole('checkbox').count(), 1);
  assert.deepEqual(await axeFindings(page), []);
  await other.check();
  await button('Compare 2 jobs', dialog).click();
  await page.waitForURL((url) => url.search === `?job=${second}&job=${first}`);
  await region().getByRole('link', { name: '1 twin-b' }).waitFor();
});

test('a filter is saved, chosen, renamed, deleted and restored', async () => {
  await page.goto(inOrg(person.slug, '/jobs'));
  await settled(page);
  const choice = page.locator('#saved-filter');
  await page.getByRole('radio', { name: 'succeeded', exact: true }).check();
  await page.waitForURL(/state=succeeded/);
  await button('Save this filter').click();
  const saving = page.getByRole('dialog', { name: 'Save this filter' });
  await button('Save filter', saving).click();
  await saving.getByText('Enter a name of 1 to 60 characters', { exact: false }).waitFor();
  await saving.getByLabel('Name').fill('done');
  assert.deepEqual(await axeFindings(page), []);
  await button('Save filter', saving).click();
  await saving.waitFor({ state: 'hidden' });
  await waitFor('the saved filter', async () => (await choice.inputValue()) === 'done');

  await page.goto(inOrg(person.slug, '/jobs'));
  await waitFor('no saved filter', async () => (await choice.isEnabled()) && (await choice.inputValue()) === '');
  await choice.selectOption('done');
  await page.waitForURL(/state=succeeded/);

  await button('Edit saved filters').click();
  const editing = page.getByRole('dialog', { name: 'Saved filters' });
  await editing.getByRole('textbox', { name: 'Name of done' }).fill('finished');
  await button('Rename done', editing).click();
  await editing.getByText('Renamed done to finished.').waitFor();
  assert.deepEqual(await axeFindings(page), []);
  await button('Delete finished', editing).click();
  await editing.getByText('Deleted finished.').waitFor();
  await editing.getByText('No saved filters.').waitFor();
  await waitFor('the focus on Undo', () => isFocused(button('Undo', editing)));
  await button('Undo', editing).click();
  await editing.getByText('Restored finished.').waitFor();
  await waitFor('the focus on the restored filter', () => isFocused(button('Delete finished', editing)));
  await button('Close', editing).click();

  await page.reload();
  await waitFor('the filter after a reload', async () => (await choice.inputValue()) === 'finished');
  // No filter is chosen: the list has all jobs.
  await choice.selectOption('');
  await page.waitForURL((url) => url.search === '');
  assert.deepEqual(view.faults, []);
});

test('the operator has saved filters of their own list', async () => {
  const headers = await signIn(demo.url, demo.operator);
  for (const viewport of SIZES) {
    const { page: own, faults, close } = await openPage(browser, demo.url, { headers, viewport });
    await own.goto('/operator/jobs?state=failed');
    await settled(own);
    await button('Save this filter', own).click();
    const saving = own.getByRole('dialog', { name: 'Save this filter' });
    await saving.getByLabel('Name').fill('broken');
    await button('Save filter', saving).click();
    await saving.waitFor({ state: 'hidden' });
    await own.goto('/operator/jobs');
    const choice = own.locator('#saved-filter:enabled');
    await choice.selectOption('broken');
    await own.waitForURL(/state=failed/);
    const wide = await own.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
    assert.ok(wide <= 0, `${wide} px too wide at ${viewport.width}`);
    assert.deepEqual(faults, []);
    await close();
  }
});
