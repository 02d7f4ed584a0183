// Maintenance by the operator: planned in the form, refused where it cannot be, cancelled after a
// question; and the terms of reservations, which keep what they say.
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { after, before, test } from 'node:test';
import { bearer, launchBrowser, openPage, settled, signIn, startDemo } from './harness.mjs';

// Far enough from now to be in nobody's way.
const day = (days) => new Date(Date.now() + days * 86_400_000).toISOString().slice(0, 11);
const BEGIN = `${day(40)}09:00`;
const END = `${day(40)}11:00`;
const reason = `driver update ${randomBytes(3).toString('hex')}`;

let demo, browser, operator, page, faults;

before(async () => {
  demo = await startDemo();
  browser = await launchBrowser();
  operator = bearer(demo.url, demo.operator.token);
  const headers = await signIn(demo.url, demo.operator);
  ({ page, faults } = await openPage(browser, demo.url, { headers, viewport: { width: 1440, height: 900 } }));
});
after(async () => {
  await browser?.close();
  await demo?.stop();
});

const awake = (button) => button.and(page.locator(':enabled')).waitFor();
const button = (where, name) => where.getByRole('button', { name, exact: true });
const row = () => page.getByRole('row').filter({ hasText: reason });
const planned = async () => {
  const { items } = await operator('GET', '/operator/reservations?limit=200');
  return items.find((known) => known.name === reason);
};

/** The page with its forms awake. */
async function open() {
  await page.goto('/operator/reservations');
  await settled(page);
  await awake(button(page, 'Plan maintenance'));
}

async function fill(begin, end) {
  await page.getByLabel('Start, UTC').fill(begin);
  await page.getByLabel('End, UTC').fill(end);
  await page.getByLabel('Reason').fill(reason);
}

test('what keeps it from being a plan stands at its field', async () => {
  await open();
  await button(page, 'Plan maintenance').click();
  await page.locator('#maintain-reason-error').waitFor();
  // What only the portal can judge stands there too.
  await fill(BEGIN, BEGIN);
  await button(page, 'Plan maintenance').click();
  await page.locator('#maintain-end-error').waitFor();
  // That refusal is the one thing that the browser's console may tell of.
  assert.deepEqual(faults.splice(0).filter((fault) => !fault.includes('422')), []);
});

test('one board of a node is kept free', async () => {
  await open();
  await fill(BEGIN, END);
  await page.getByRole('checkbox', { name: /^GPU 2:/ }).check();
  await button(page, 'Plan maintenance').click();
  await page.getByText('Maintenance planned. It appears in the list above.').waitFor();
  await row().filter({ hasText: 'scheduled' }).filter({ hasText: '1 board' }).waitFor();
  const made = await planned();
  assert.equal(made.kind, 'maintenance');
  assert.equal(made.starts_at, `${BEGIN}:00Z`);
  assert.equal(made.ends_at, `${END}:00Z`);
});

test('it is cancelled after a question', async () => {
  await button(page, `Cancel ${reason}`).click();
  const dialog = page.getByRole('dialog', { name: `Cancel ${reason}?` });
  await button(dialog, 'Keep maintenance').click();
  await dialog.waitFor({ state: 'hidden' });
  assert.equal((await planned()).state, 'scheduled');
  await button(page, `Cancel ${reason}`).click();
  await button(dialog, 'Cancel maintenance').click();
  await dialog.waitFor({ state: 'hidden' });
  await row().filter({ hasText: 'cancelled' }).waitFor();
  assert.equal((await planned()).state, 'cancelled');
});

test('the terms keep what is typed', async () => {
  const before = await operator('GET', '/operator/reservation-policy');
  try {
    await open();
    await page.getByLabel('Quote validity').fill('soon');
    await button(page, 'Save terms').click();
    await page.locator('#terms-quote-error').waitFor();
    await page.getByLabel('Quote validity').fill('1 h 30 min');
    await page.getByLabel('Approval threshold').fill('2.5');
    await button(page, 'Save terms').click();
    await page.getByText('Saved for new quotes.').waitFor();
    const saved = await operator('GET', '/operator/reservation-policy');
    assert.deepEqual(saved, { ...before, quote_valid_s: 5_400, approval_above_boards_milli: 2_500 });
  } finally {
    await operator('PUT', '/operator/reservation-policy', before);
  }
});

test('nothing went wrong in the browser on the way', () => assert.deepEqual(faults, []));
