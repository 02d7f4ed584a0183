// The capacity by model on a portal with 250 boards: few elements at both widths, a booking from the row of a model,
// and single boards on request.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { axeFindings } from './checks.mjs';
import {
  api, bearer, inOrg, launchBrowser, openPage, settled, signIn, signUp, startClockedPortal, startWorker,
  withoutLateQuotes,
} from './harness.mjs';

const OPERATOR = { name: 'Harbour master', email: 'operator@example.org', password: 'lantern quay seven drizzle' };
const WIDE = { width: 1440, height: 900 };
const PHONE = { width: 390, height: 844 };
const H100S = 186;
const MOST_ELEMENTS = 3_000;

let portal, browser, operator, tenant, tomorrow;
const workers = [];
const faults = [];

before(async () => {
  portal = await startClockedPortal();
  browser = await launchBrowser();
  await api(portal.url, {})('POST', '/setup', { token: portal.token, ...OPERATOR });
  operator = api(portal.url, await signIn(portal.url, OPERATOR));
  for (const [name, fleet] of [
    ['pier-1', '62xH100-80GB'], ['pier-2', '62xH100-80GB'], ['pier-3', '62xH100-80GB'], ['pier-4', '64xA30'],
  ]) {
    workers.push(await startWorker(portal, operator, name, fleet));
  }
  await operator('POST', '/operator/prices', { offering: 'h100-80gb', per_hour_micros: 2_990_000 });
  tenant = await signUp(portal.url, 'Longshore');
  await operator('POST', `/operator/orgs/${tenant.org}/credits`, { amount_micros: 1_000_000_000, memo: 'Welcome' });
  tomorrow = new Date(portal.now() + 86_400_000).toISOString().slice(0, 10);
});
after(async () => {
  await browser?.close();
  for (const worker of workers) await worker.stop();
  await portal?.stop();
});

const button = (page, name) => page.getByRole('button', { name, exact: true });
const awake = (control) => control.and(control.page().locator(':enabled')).waitFor();
const models = (page) => page.getByRole('grid', { name: 'Capacity by model' });
const boards = (page) => page.getByRole('grid', { name: 'Boards by time' });
const known = (grid) => grid.and(grid.page().locator('[aria-busy="false"]')).waitFor();
const elements = (page) => page.evaluate(() => document.querySelectorAll('*').length);
const headers = (grid) => grid.getByRole('rowheader');
const needed = (page) => page.getByRole('spinbutton', { name: 'Boards needed' });

/** The awake page with tomorrow in the calendar. */
async function open(viewport) {
  const view = await openPage(browser, portal.url, {
    headers: tenant.headers, viewport, timezoneId: 'UTC', locale: 'en-US',
  });
  faults.push(view.faults);
  const { page } = view;
  await page.goto(inOrg(tenant.slug, '/reservations'));
  await settled(page);
  await awake(button(page, 'Next'));
  await button(page, 'Today').press('Enter');
  const day = ` ${Number(tomorrow.slice(8))} `;
  // In a run over midnight it is today.
  const today = await page.locator('.schedule__title h2').innerText();
  if (!today.includes(day)) await button(page, 'Next').press('Enter');
  await page.waitForFunction((day) => document.querySelector('.schedule__title h2')?.textContent.includes(day), day);
  await known(models(page));
  return view;
}

/** The row of a model. */
const row = (page, model) => models(page).getByRole('row').filter({ has: page.getByRole('rowheader', { name: model }) });
const cell = (page, model, column) => row(page, model).locator(`[role="gridcell"][data-start="${column}"]`);

for (const viewport of [WIDE, PHONE]) {
  test(`250 boards are two rows at ${viewport.width} px`, async () => {
    const { page, close } = await open(viewport);
    assert.equal(await headers(models(page)).count(), 2);
    await row(page, 'H100-80GB').getByText(`${H100S} of ${H100S} boards free now`).waitFor();
    assert.ok(await elements(page) <= MOST_ELEMENTS, `${await elements(page)} elements`);
    const sideways = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
    assert.ok(sideways <= 0, `${sideways} px too wide`);
    assert.deepEqual(await axeFindings(page), []);
    await button(page, 'Show boards').click();
    await headers(boards(page)).first().waitFor();
    await known(boards(page));
    assert.equal(await headers(boards(page)).count(), 32);
    await page.getByText('Boards 1 to 32 of 250').waitFor();
    assert.ok(await elements(page) <= MOST_ELEMENTS, `${await elements(page)} elements with boards`);
    assert.deepEqual(await axeFindings(page), []);
    await close();
  });
}

test('boards are shown by page and by model', async () => {
  const { page, close } = await open(WIDE);
  await button(page, 'Show boards').click();
  await page.getByText('Boards 1 to 32 of 250').waitFor();
  await button(page, 'Next boards').click();
  await page.getByText('Boards 33 to 64 of 250').waitFor();
  await page.getByRole('combobox', { name: 'Board model' }).selectOption('A30-24GB');
  await page.getByText('Boards 1 to 32 of 64').waitFor();
  assert.match(await headers(boards(page)).first().innerText(), /^pier-4 · GPU 0 · A30/);
  await button(page, 'Next boards').click();
  await page.getByText('Boards 33 to 64 of 64').waitFor();
  assert.equal(await button(page, 'Next boards').getAttribute('aria-disabled'), 'true');
  assert.ok(await button(page, 'Next boards').evaluate((one) => one === document.activeElement), 'the focus stays');
  await button(page, 'Hide boards').click();
  await boards(page).waitFor({ state: 'detached' });
  await close();
});

test('eight boards are booked from the row of their model with the keyboard', async () => {
  const { page, close } = await open(WIDE);
  await page.getByRole('combobox', { name: 'Offering' }).selectOption('h100-80gb');
  await needed(page).fill('8');
  await cell(page, 'H100-80GB', 18).and(page.locator('.cell--fits')).waitFor();
  await cell(page, 'H100-80GB', 18).focus();
  await page.locator('.schedule__pointed', { hasText: `09:00, ${H100S} of ${H100S} boards free` }).waitFor();
  await page.keyboard.press('Home');
  for (let step = 0; step < 18; step += 1) await page.keyboard.press('ArrowRight');
  await page.keyboard.press('Enter');
  await page.getByText(/^Start: .* 09:00\. Select the end\.$/).waitFor();
  for (let step = 0; step < 3; step += 1) await page.keyboard.press('ArrowRight');
  await page.keyboard.press('Enter');
  await page.getByText(/^Selected: .* 09:00 to 11:00 \(2 h\)\.$/).waitFor();
  await button(page, 'Continue with 8 × H100-80GB').click();
  const offering = page.getByRole('combobox', { name: 'Offering' });
  assert.ok(await offering.evaluate((field) => field === document.activeElement), 'the form has the focus');
  assert.equal(await offering.inputValue(), 'h100-80gb');
  assert.equal(await page.getByRole('spinbutton', { name: 'Devices' }).inputValue(), '8');
  assert.equal(await page.getByRole('spinbutton', { name: 'Nodes' }).inputValue(), '1');
  assert.equal(await page.getByLabel('Start', { exact: true }).inputValue(), `${tomorrow}T09:00`);
  await page.getByRole('textbox', { name: 'Name', exact: true }).fill('eight');
  const reserve = page.getByRole('button', { name: /^Reserve for \$/ });
  await awake(reserve);
  await reserve.click();
  await page.waitForURL(/\/reservations\/res_/);
  await page.getByRole('heading', { level: 1, name: 'eight' }).waitFor();
  await close();
});

test('boards without a price and boards that no equal number of nodes has are not offered', async () => {
  const { page, close } = await open(WIDE);
  const pick = async (model) => {
    await cell(page, model, 18).focus();
    await page.keyboard.press('Enter');
    await page.keyboard.press('Enter');
  };
  await needed(page).fill('4');
  await pick('A30-24GB');
  await page.getByText(/^Selected: .* Whole boards of A30-24GB have no price\.$/).waitFor();
  await button(page, 'Go to the form').waitFor();
  // A prime number, and three nodes with 62 boards.
  await needed(page).fill('67');
  await pick('H100-80GB');
  await page.getByText(/67 boards cannot be spread evenly over at most 3 nodes\. /).waitFor();
  await button(page, 'Go to the form').waitFor();
  await needed(page).fill('66');
  await button(page, 'Continue with 66 × H100-80GB').waitFor();
  assert.equal(await page.getByRole('spinbutton', { name: 'Nodes' }).inputValue(), '2');
  await close();
});

test('the booking is in the row, and too few free boards do not fit', async () => {
  const { page, close } = await open(WIDE);
  const text = await cell(page, 'H100-80GB', 19).getAttribute('aria-label');
  assert.match(text, new RegExp(`09:30, ${H100S - 8} of ${H100S} boards free, 8 yours$`));
  await needed(page).fill(`${H100S}`);
  await cell(page, 'H100-80GB', 24).and(page.locator('.cell--fits')).waitFor();
  assert.equal(await cell(page, 'H100-80GB', 19).and(page.locator('.cell--fits')).count(), 0);
  await needed(page).fill('0');
  await page.getByText('Enter a whole number of boards, at least 1.').waitFor();
  // Another organization sees that boards are taken.
  const other = await signUp(portal.url, 'Kelda');
  const day = (clock) => `${tomorrow}T${clock}:00Z`;
  const { models: all } = await other.api('GET', `/orgs/${other.org}/capacity?from=${day('09:30')}&until=${day('10:00')}`);
  const h100 = all.find((one) => one.model === 'H100-80GB');
  assert.deepEqual([h100.steps[0].own, h100.steps[0].others], [0, 8]);
  await close();
});

test('a time range on a phone fills the form', async () => {
  const view = await openPage(browser, portal.url, {
    headers: tenant.headers, viewport: PHONE, hasTouch: true, timezoneId: 'UTC', locale: 'en-US',
  });
  faults.push(view.faults);
  const { page } = view;
  await page.goto(inOrg(tenant.slug, '/reservations'));
  await settled(page);
  await awake(button(page, 'Next'));
  await button(page, 'Next').tap();
  await known(models(page));
  await needed(page).fill('62');
  await cell(page, 'H100-80GB', 40).tap();
  await page.getByText(/^Start: .* 20:00\. Select the end\.$/).waitFor();
  await cell(page, 'H100-80GB', 41).tap();
  await page.getByText(/^Selected: .* 20:00 to 21:00 \(1 h\)\.$/).waitFor();
  assert.equal(await page.getByRole('spinbutton', { name: 'Devices' }).inputValue(), '62');
  await view.close();
});

test('nothing went wrong in the browser on the way', () => assert.deepEqual(withoutLateQuotes(faults.flat()), []));
