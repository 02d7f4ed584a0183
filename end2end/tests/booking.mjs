// The whole road of a booking, on a portal whose clock is moved: a cluster of two nodes is reserved for
// tomorrow at a price that is shown, used by a job whose ranks talk to each other, and billed next month
// for exactly that price.
import assert from 'node:assert/strict';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import {
  api, bearer, boardsFree, ENDED, inOrg, jobIn, launchBrowser, reservedText, openPage, ROOT, settled, signIn,
  signUp, startClockedPortal, startWorker, waitFor, withoutLateQuotes,
} from './harness.mjs';

const BOARD = 'h100-80gb';
// A thousandth of a dollar each second: no rounding hides a difference.
const PER_HOUR_MICROS = 3_600_000;
const SHOTS = join(ROOT, 'target/screens');
const OPERATOR = { name: 'Harbour master', email: 'operator@example.org', password: 'lantern quay seven drizzle' };

let portal, browser, operator, tenant, call, tomorrow, view;
const workers = [];
const made = {};
// Of every page that was open, what went wrong in it.
const faults = [];

before(async () => {
  mkdirSync(SHOTS, { recursive: true });
  portal = await startClockedPortal();
  browser = await launchBrowser();
  await api(portal.url, {})('POST', '/setup', { token: portal.token, ...OPERATOR });
  // People's sessions end while the clock moves; tokens stay.
  const desk = api(portal.url, await signIn(portal.url, OPERATOR));
  operator = bearer(portal.url, (await desk('POST', '/operator/tokens', { name: 'test' })).secret);
  for (const name of ['wharf-1', 'wharf-2']) workers.push(await startWorker(portal, operator, name, '1xH100-80GB'));
  await operator('POST', '/operator/prices', { offering: BOARD, per_hour_micros: PER_HOUR_MICROS });
  await operator('PUT', '/operator/billing-settings', {
    seller: 'Harbour Compute B.V.', taxes: [{ name: 'VAT', basis_points: 1_900 }], due_days: 14,
  });
  tenant = await signUp(portal.url, 'Longshore');
  await operator('POST', `/operator/orgs/${tenant.org}/credits`, { amount_micros: 100_000_000, memo: 'Welcome' });
  const { secret } = await tenant.api('POST', `/orgs/${tenant.org}/tokens`, { name: 'test', role: 'owner' });
  call = bearer(portal.url, secret);
  tomorrow = new Date(portal.now() + 86_400_000).toISOString().slice(0, 10);
});
after(async () => {
  try {
    if (made.job && !ENDED.includes((await call('GET', `/orgs/${tenant.org}/jobs/${made.job}`)).state)) {
      await call('POST', `/orgs/${tenant.org}/jobs/${made.job}/cancel`);
      await boardsFree(operator);
    }
  } finally {
    await browser?.close();
    for (const worker of workers) await worker.stop();
    await portal?.stop();
  }
});

const at = (time) => `${tomorrow}T${time}`;
const awake = (button) => button.and(button.page().locator(':enabled')).waitFor();
const button = (where, name) => where.getByRole('button', { name });
const begin = (page) => page.getByLabel('Start', { exact: true });
const end = (page) => page.getByLabel('End', { exact: true });
const named = (page) => page.getByRole('textbox', { name: 'Name', exact: true });
const number = (page, name) => page.getByRole('spinbutton', { name, exact: true });
const reserve = (page) => button(page, /^Reserve for \$/);
const lead = (page) => page.locator('.quote .summary__row--lead dd');
const stat = (page, name) =>
  page.locator('.stat').filter({ has: page.getByText(name, { exact: true }) }).locator('.stat__value');
const quote = (starts, ends) =>
  call('POST', `/orgs/${tenant.org}/quotes`, {
    offering: BOARD, nodes: 2, gpus_per_node: 1, starts_at: `${at(starts)}:00Z`, ends_at: `${at(ends)}:00Z`,
  });
const reservation = () => call('GET', `/orgs/${tenant.org}/reservations/${made.reservation}`);
const shoot = (page, name) => page.screenshot({ path: join(SHOTS, `${name}.png`), fullPage: true });

/** `Sun 22 Nov`, tomorrow as the pages write it. */
function dateText() {
  const day = new Date(`${tomorrow}T00:00:00Z`);
  const part = (options) => day.toLocaleDateString('en-GB', { timeZone: 'UTC', ...options });
  return `${part({ weekday: 'short' })} ${day.getUTCDate()} ${part({ month: 'short' }).slice(0, 3)}`;
}

/** A page of somebody who signs in now; the one before is closed. */
async function enter(person) {
  await view?.close();
  const headers = await signIn(portal.url, person);
  view = await openPage(browser, portal.url, {
    headers, viewport: { width: 1440, height: 900 }, timezoneId: 'UTC', locale: 'en-US',
  });
  faults.push(view.faults);
  return view.page;
}

/** Moves the portal's clock to a time. No page is left open that would go on with a session of before. */
async function moveTo(time) {
  await view?.close();
  view = undefined;
  await portal.forward(Math.ceil((time - portal.now()) / 1_000));
}

/** The awake form with both nodes at a time of tomorrow in it. */
async function ask(page, starts, ends) {
  await page.goto(inOrg(tenant.slug, '/reservations'));
  await settled(page);
  await awake(button(page, 'Next'));
  await page.locator('[role="grid"][aria-busy="false"]').waitFor();
  await page.getByRole('combobox', { name: 'Offering' }).selectOption(BOARD);
  await number(page, 'Devices').fill('1');
  await number(page, 'Nodes').fill('2');
  // What stands in the form begins earlier, so at no moment is an end before its begin.
  await end(page).fill(at(ends));
  await begin(page).fill(at(starts));
}

test('a cluster of two nodes is reserved for tomorrow at the price that is shown', async () => {
  const { total_micros: total } = await quote('09:00', '11:00');
  // Two boards for two hours.
  assert.equal(total, 4 * PER_HOUR_MICROS);
  const page = await enter(tenant);
  await ask(page, '09:00', '11:00');
  made.price = reservedText(BigInt(total));
  made.total = total;
  await awake(button(page, `Reserve for ${made.price}`));
  assert.equal(await lead(page).innerText(), made.price);
  await named(page).fill('two-nodes');
  await shoot(page, 'booking-quote');
  await reserve(page).click();
  await page.waitForURL(/\/reservations\/res_/);
  await page.getByRole('heading', { level: 1, name: 'two-nodes' }).waitFor();
  made.reservation = /res_[0-9a-z]+/.exec(page.url())[0];
  const now = await reservation();
  assert.deepEqual([now.state, now.starts_at, now.ends_at, now.total_micros, now.held_micros],
    ['scheduled', `${at('09:00')}:00Z`, `${at('11:00')}:00Z`, total, total]);
  assert.equal(new Set(now.devices.map((device) => device.node)).size, 2);
  await shoot(page, 'booking-reserved');
});

test('the same nodes an hour later are refused, and free from its end on', async () => {
  const { page } = view;
  await ask(page, '10:00', '12:00');
  await page.getByText('Not enough free devices at this time.').waitFor();
  await page.getByRole('link', { name: /Your reservation two-nodes/ }).waitFor();
  assert.equal(await reserve(page).isDisabled(), true);
  assert.equal(await page.locator('.quote__ways button').first().innerText(), `${dateText()} 11:00 to 13:00`);
  const refused = await quote('10:00', '12:00');
  assert.deepEqual([refused.feasible, refused.alternatives[0].starts_at], [false, (await reservation()).ends_at]);
  await shoot(page, 'booking-refused');
});

/** Every rank sends its numbers to the first, which adds them up and tells all of them the sums. */
const ALL_REDUCE = `
import json, os, socket, time
rank, world = int(os.environ["NODE_RANK"]), int(os.environ["NNODES"])
place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
mine = [(rank + 1) * i for i in range(1000)]
if rank == 0:
    server = socket.create_server(place)
    peers = [server.accept()[0].makefile("rw") for _ in range(world - 1)]
    total = mine
    for peer in peers:
        total = [a + b for a, b in zip(total, json.loads(peer.readline()))]
    for peer in peers:
        peer.write(json.dumps(total) + "\\n"); peer.flush()
else:
    for _ in range(400):
        try:
            peer = socket.create_connection(place).makefile("rw"); break
        except OSError:
            time.sleep(0.05)
    peer.write(json.dumps(mine) + "\\n"); peer.flush()
    total = json.loads(peer.readline())
print("rank", rank, "of", world, "sum", sum(total))
`;

test('in its time it is active, and a job runs in it on both nodes', async () => {
  // A portal that ran only after its begin would move the begin.
  for (const time of ['09:00', '09:30']) await moveTo(Date.parse(`${at(time)}:00Z`));
  const page = await enter(tenant);
  await page.goto(inOrg(tenant.slug, '/reservations'));
  await settled(page);
  const row = page.getByRole('row').filter({ has: page.getByRole('link', { name: 'two-nodes' }) });
  await row.getByText('active', { exact: true }).waitFor();
  assert.equal((await reservation()).state, 'active');
  await page.goto(inOrg(tenant.slug, `/reservations/${made.reservation}`));
  await settled(page);
  await page.locator('.page__head').getByText('active', { exact: true }).waitFor();
  await shoot(page, 'booking-active');
  await page.getByRole('link', { name: 'Launch job' }).click();
  await page.waitForURL(/\/launch\?reservation=/);

  const launch = button(page, 'Launch job');
  await awake(launch);
  assert.equal(await page.getByRole('combobox', { name: 'Reservation' }).inputValue(), made.reservation);
  await named(page).fill('all-reduce');
  await page.getByRole('textbox', { name: 'Command', exact: true }).fill('python3 all_reduce.py');
  await page.getByRole('button', { name: 'Add file' }).click();
  await page.getByRole('textbox', { name: 'File path' }).fill('all_reduce.py');
  await page.getByRole('textbox', { name: 'File content' }).fill(ALL_REDUCE);
  await number(page, 'Nodes').fill('2');
  await launch.click();
  await page.waitForURL(/\/jobs\/job_/);
  made.job = /job_[0-9a-z]+/.exec(page.url())[0];
  // The portal's own word first: so a page that missed it is told from a job that did not end.
  const done = await jobIn(call, tenant.org, made.job, ENDED);
  await page.locator('.page__head').getByText('succeeded').first().waitFor();

  const sum = 3 * ((999 * 1_000) / 2);
  for (const rank of [0, 1]) {
    await page.getByRole('radio', { name: `rank ${rank}` }).check();
    const said = `rank ${rank} of 2 sum ${sum}`;
    await waitFor(said, async () => (await page.getByRole('log').first().innerText()).includes(said));
  }
  assert.deepEqual([done.state, done.reservation, done.cost_micros, done.held_micros],
    ['succeeded', made.reservation, 0, 0]);
  assert.equal(new Set(done.devices.map((device) => device.node)).size, 2);
  assert.ok(done.metered_ms > 0);
  await boardsFree(operator);
  await shoot(page, 'booking-job');
});

test('past its end it is over, and its price is paid', async () => {
  await moveTo(Date.parse(`${at('11:00')}:30Z`));
  const done = await reservation();
  assert.deepEqual([done.state, done.posted_micros, done.held_micros], ['ended', made.total, 0]);
  assert.ok(done.used_device_ms > 0);
  const page = await enter(tenant);
  await page.goto(inOrg(tenant.slug, `/reservations/${made.reservation}`));
  await settled(page);
  await page.locator('.page__head').getByText('ended', { exact: true }).waitFor();
  assert.equal(await stat(page, 'Charged').innerText(), made.price);
  assert.equal((await call('GET', `/orgs/${tenant.org}/balance`)).posted_micros, 100_000_000 - made.total);
});

test('next month it is billed for what the quote said', async () => {
  const day = new Date(`${tomorrow}T00:00:00Z`);
  const month = tomorrow.slice(0, 7);
  // Two hours into it: the last charges of a month have an hour to come in.
  await moveTo(Date.UTC(day.getUTCFullYear(), day.getUTCMonth() + 1, 1, 2));
  const { items } = await call('GET', `/orgs/${tenant.org}/invoices`);
  assert.deepEqual(items.map((one) => [one.number, one.month, one.state]), [[1, month, 'paid']]);
  const tax = (made.total * 19) / 100;
  const { subtotal_micros: net, total_micros: total, lines } = items[0].document;
  assert.deepEqual([net, total, lines.length], [made.total, made.total + tax, 1]);

  const page = await enter(tenant);
  await page.goto(inOrg(tenant.slug, '/billing'));
  await settled(page);
  await page.getByRole('navigation', { name: 'Billing' }).getByRole('link', { name: 'Invoices' }).click();
  await page.getByRole('link', { name: 'Invoice 1', exact: true }).click();
  await page.getByRole('heading', { level: 1, name: 'Invoice 1' }).waitFor();
  const paper = page.locator('.invoice');
  const sum = (name) => paper.locator('.invoice__total dt').filter({ hasText: name }).locator('xpath=following-sibling::dd[1]');
  // The tax needs three decimals, so all amounts of the invoice have three.
  assert.equal(await sum(/^Net$/).innerText(), `${made.price}0`);
  assert.equal(await paper.locator('tbody [data-label="Amount"]').innerText(), `${made.price}0`);
  await paper.getByRole('rowheader', { name: `${BOARD}, reserved` }).waitFor();
  assert.equal(await sum(/^VAT, 19 %$/).innerText(), '$2.736');
  assert.equal(await sum(/^Total$/).innerText(), '$17.136');
  await shoot(page, 'booking-invoice');
});

test('the ledger of all this is consistent', async () => {
  const page = await enter(OPERATOR);
  await page.goto('/operator/books');
  await settled(page);
  const check = button(page, 'Run check');
  await awake(check);
  await check.click();
  await page.getByText('Check finished.').waitFor();
  await page.getByText('The ledger is consistent').waitFor();
  await page.getByText(/, no mismatches, duration /).waitFor();
  assert.deepEqual((await operator('GET', '/operator/reconciliation')).mismatches, []);
});

test('nothing went wrong in the browser on the way', () => {
  // The clock of the browser is not moved. All times that the test enters are at least nine hours later.
  assert.deepEqual(withoutLateQuotes(faults.flat()), []);
});
