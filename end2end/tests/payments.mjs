// Cards and webhooks in the browser, on a portal of its own beside a stand-in for Stripe: credit that
// arrives once however often it is told, a payment that is left, the saved card, and a signed call when
// that card is declined.
import assert from 'node:assert/strict';
import { createHmac } from 'node:crypto';
import { mkdirSync } from 'node:fs';
import { createServer } from 'node:http';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { inOrg, launchBrowser, openPage, ROOT, settled, signUp, startBarePortal, waitFor } from './harness.mjs';
import { startStripe } from './stripe.mjs';

const SHOTS = join(ROOT, 'target/screens');

let stripe, portal, browser, receiver, tenant, view, secret;

/** Keeps what is sent to it, and answers 204. */
async function startReceiver() {
  const got = [];
  const server = createServer(async (request, response) => {
    const chunks = [];
    for await (const chunk of request) chunks.push(chunk);
    got.push({ signature: request.headers['berth-signature'], body: Buffer.concat(chunks).toString('utf8') });
    response.writeHead(204).end();
  });
  await new Promise((done, failed) => server.on('error', failed).listen(0, '127.0.0.1', done));
  const stop = () =>
    new Promise((done) => {
      server.close(done);
      server.closeAllConnections();
    });
  return { url: `http://127.0.0.1:${server.address().port}/berth`, got, stop };
}

before(async () => {
  mkdirSync(SHOTS, { recursive: true });
  stripe = await startStripe();
  receiver = await startReceiver();
  portal = await startBarePortal({ ...stripe.settings, BERTH_PRIVATE_WEBHOOKS: 'true' });
  stripe.tells(portal.url);
  browser = await launchBrowser();
  tenant = await signUp(portal.url, 'Drydock');
  view = await openPage(browser, portal.url, { headers: tenant.headers, viewport: { width: 1440, height: 900 } });
});
after(async () => {
  await browser?.close();
  await portal?.stop();
  await receiver?.stop();
  await stripe?.stop();
});

const awake = (button) => button.and(button.page().locator(':enabled')).waitFor();
const button = (where, name) => where.getByRole('button', { name, exact: true });
const textbox = (where, name) => where.getByRole('textbox', { name, exact: true });
const form = (page, name) => page.getByRole('form', { name, exact: true });
const stat = (page, name) =>
  page.locator('.stat').filter({ has: page.getByText(name, { exact: true }) }).locator('.stat__value');
const payment = (page, what) => page.getByRole('table', { name: 'Payments' }).getByRole('row').filter({ hasText: what });
const posted = async () => (await tenant.api('GET', `/orgs/${tenant.org}/balance`)).posted_micros;
const atStripe = (page) => page.waitForURL((url) => url.origin === stripe.url);

/** Pictures of the page as it stands, at a desk and in a hand. */
async function shoot(page, name) {
  for (const width of [390, 1440]) {
    await page.setViewportSize({ width, height: 900 });
    const wide = await page.evaluate(() => document.documentElement.scrollWidth);
    assert.ok(wide <= width, `${name}: ${wide} px wide in ${width}`);
    await page.screenshot({ path: join(SHOTS, `${name}-${width}-light.png`), fullPage: true });
  }
}

/** The page of Stripe's on which an amount is paid. */
async function openCheckout(page, amount, keep) {
  await page.goto(inOrg(tenant.slug, '/billing'));
  await settled(page);
  const add = form(page, 'Add credit');
  await awake(button(add, 'Pay by card'));
  await textbox(add, 'Amount').fill(amount);
  if (keep) await add.getByRole('checkbox', { name: /^Save card/ }).check();
  await button(add, 'Pay by card').click();
}

test('an amount that a card cannot pay is said at its field', async () => {
  const { page } = view;
  await openCheckout(page, 'a crown', false);
  assert.match(await page.locator('#top-up-amount-error').innerText(), /such as 25/);
  await textbox(form(page, 'Add credit'), 'Amount').fill('25.005');
  await button(form(page, 'Add credit'), 'Pay by card').click();
  await page.locator('#top-up-amount-error').filter({ hasText: /in steps of \$0\.01/ }).waitFor();
  await page.getByText(/^No payments yet/).waitFor();
  await form(page, 'Automatic recharge').getByText(/^No saved card/).waitFor();
  await shoot(page, 'billing-cards-empty');
});

test('credit is paid on the page of Stripe and arrives once', async () => {
  const { page } = view;
  await openCheckout(page, '25', true);
  await atStripe(page);
  await page.getByRole('heading', { name: 'Berth credit' }).waitFor();
  await page.getByText('$25.00', { exact: true }).waitFor();
  await button(page, 'Pay').click();
  await page.waitForURL(/\/billing\?payment=done$/);
  await settled(page);
  await page.getByText(/^Payment (pending|received)$/).waitFor();

  await payment(page, 'Card payment').filter({ hasText: 'paid' }).filter({ hasText: '$25.00' }).waitFor();
  await page.getByText('Payment received', { exact: true }).waitFor();
  await waitFor('the balance', async () => (await stat(page, 'Balance').innerText()) === '$25.00');
  assert.deepEqual(stripe.told, [200, 200, 200], 'every event was taken');
  // The portal looks at events every two seconds: whatever another one did would be seen by then.
  await page.waitForTimeout(4_500);
  assert.equal(await posted(), 25_000_000);
  const { items } = await tenant.api('GET', `/orgs/${tenant.org}/transfers?limit=50`);
  assert.deepEqual(items.map((t) => [t.kind, t.amount_micros]), [['credit', 25_000_000]]);
  assert.equal(await stat(page, 'Balance').innerText(), '$25.00');
  await shoot(page, 'billing-cards');
});

test('a payment that is left charges nothing', async () => {
  const { page } = view;
  await openCheckout(page, '40', false);
  await atStripe(page);
  await page.getByRole('link', { name: 'Back' }).click();
  await page.waitForURL(/\/billing\?payment=cancelled$/);
  await settled(page);
  await page.getByText('Payment cancelled', { exact: true }).waitFor();
  await payment(page, '$40.00').filter({ hasText: 'open' }).waitFor();
  assert.equal(await posted(), 25_000_000);
});

test('receipts and cards are at Stripe', async () => {
  const { page } = view;
  const there = button(page, 'Manage cards and receipts');
  await awake(there);
  await there.click();
  await atStripe(page);
  await page.getByRole('link', { name: 'Return' }).click();
  await page.waitForURL(/\/billing$/);
  await settled(page);
});

test('a webhook is made, and its secret is shown once', async () => {
  const { page } = view;
  await page.goto(inOrg(tenant.slug, '/tokens'));
  await settled(page);
  await page.getByRole('main').getByRole('link', { name: 'webhook' }).click();
  await page.waitForURL(/\/webhooks$/);
  await page.getByText(/^No webhooks yet/).waitFor();
  const make = button(page, 'Create webhook');
  await awake(make);
  await textbox(page, 'URL').fill('the quay');
  await make.click();
  await page.locator('#webhook-url-error').waitFor();
  assert.match(await page.locator('#webhook-kinds-error').innerText(), /job\.\*/);

  await textbox(page, 'URL').fill(receiver.url);
  await page.getByRole('checkbox', { name: /^invoice\.\*/ }).check();
  await textbox(page, 'Other events').fill('job.finished');
  await make.click();
  await page.locator('#webhook-kinds-error').getByText(/No event has the kind job\.finished/).waitFor();
  await textbox(page, 'Other events').fill('job.failed');
  await make.click();
  const shown = page.locator('.secret');
  await shown.getByText('Copy the secret now.').waitFor();
  secret = (await shown.getByRole('group', { name: 'Webhook secret' }).locator('code').innerText()).trim();
  assert.match(secret, /^whsec_/);
  const row = page.getByRole('table', { name: 'Webhooks' }).getByRole('row').filter({ hasText: receiver.url });
  await row.getByText('job.failed', { exact: true }).waitFor();
  await page.getByText(/^No deliveries yet/).waitFor();
  await page.goto(inOrg(tenant.slug, '/webhooks'));
  await settled(page);
  assert.equal(await page.locator('.secret').count(), 0);
});

test('the saved card is charged by rule, and when it is declined the webhook hears of it', async () => {
  const { page } = view;
  stripe.decline(true);
  await page.goto(inOrg(tenant.slug, '/billing'));
  await settled(page);
  const rule = form(page, 'Automatic recharge');
  await rule.getByText(/^Off: the saved card/).waitFor();
  const save = button(rule, 'Save rule');
  await awake(save);
  await save.click();
  await page.locator('#recharge-below-error').waitFor();
  await textbox(rule, 'Threshold').fill('100');
  await textbox(rule, 'Amount').fill('10');
  await textbox(rule, 'Maximum charges').fill('1');
  await save.click();
  await page.locator('#recharge-amount-error').filter({ hasText: 'one charge of $10.00 a day' }).waitFor();
  await textbox(rule, 'Threshold').fill('30');
  await save.click();
  await rule.getByText('Rule saved and in effect.').waitFor();
  await rule.getByText(/^On: when less than \$30\.00 is available, \$10\.00 is charged/).waitFor();

  const [first] = await waitFor('the call', () => receiver.got.length > 0 && receiver.got);
  const { t, v1 } = Object.fromEntries(first.signature.split(',').map((part) => part.split('=')));
  assert.equal(v1, createHmac('sha256', secret).update(`${t}.${first.body}`).digest('hex'));
  const told = JSON.parse(first.body);
  assert.deepEqual([told.type, told.data.amount_micros], ['invoice.payment_failed', 10_000_000]);

  await payment(page, 'Automatic recharge').filter({ hasText: 'Your card was declined.' }).filter({ hasText: 'failed' })
    .waitFor();
  assert.equal(await posted(), 25_000_000);
  await button(rule, 'Turn off').click();
  await rule.getByText('Automatic recharge turned off.').waitFor();
});

test('the delivery is seen, sent again, and the webhook deleted after a question', async () => {
  const { page } = view;
  await page.goto(inOrg(tenant.slug, '/webhooks'));
  await settled(page);
  const row = page.getByRole('table', { name: /^Deliveries/ }).getByRole('row').filter({ hasText: 'invoice.payment_failed' });
  await row.filter({ hasText: 'delivered' }).filter({ hasText: 'HTTP status 204' }).waitFor();
  await shoot(page, 'webhooks-delivered');
  const before = receiver.got.length;
  await row.getByRole('button', { name: /^Resend/ }).first().click();
  await page.getByText('Resending.').waitFor();
  await waitFor('the second call', () => receiver.got.length > before);
  assert.equal(JSON.parse(receiver.got.at(-1).body).id, JSON.parse(receiver.got[0].body).id);

  await button(page, `Delete ${receiver.url}`).click();
  const dialog = page.getByRole('dialog', { name: 'Delete this webhook?' });
  await button(dialog, 'Keep webhook').click();
  await dialog.waitFor({ state: 'hidden' });
  await button(page, `Delete ${receiver.url}`).click();
  await button(dialog, 'Delete webhook').click();
  await page.getByText(/^No webhooks yet/).waitFor();
  assert.deepEqual((await tenant.api('GET', `/orgs/${tenant.org}/webhooks`)).items, []);
});

test('nothing went wrong in the browser on the way', () =>
  assert.deepEqual(view.faults.filter((fault) => !fault.includes('status of 422')), []));
